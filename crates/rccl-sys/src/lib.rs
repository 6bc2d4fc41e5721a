//! Raw tables of HIP and RCCL, loaded at run time.
