//! The C interface.
