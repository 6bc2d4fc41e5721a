//! What prose promises, held by a test: layers, names and numbers, documents, examples.

mod layers;
mod source;
mod topology;
