//! What prose promises, held by a test: layers, names and numbers, documents, examples.

mod documents;
mod examples;
mod kernels;
mod layers;
pub(crate) mod machines;
mod names;
mod picture;
mod processors;
mod source;
mod stub;
mod topology;
