//! The one integration binary.

mod contract;
