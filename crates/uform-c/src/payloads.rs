//! The byte strings of all members, as an exchange gave them.

use std::ffi::c_void;

use uform::error::Error;

use crate::argument::Out;
use crate::handle::{self, Handled, Payloads};
use crate::verbs;

/// Byte strings by index, as C holds them.
pub(crate) struct Held(pub(crate) Vec<Vec<u8>>);

impl Handled for Held {
    type Handle = Payloads;
    const NOUN: &'static str = "payloads";
}

verbs! {
    /// How many there are: one of each member.
    fn uform_payloads_count(payloads: *const Payloads, count: *mut usize) {
        let count = Out::new(count, "count")?;
        count.put(handle::get::<Held>(payloads)?.0.len());
        Ok(())
    }

    /// Where the bytes of one member lie.
    fn uform_payloads_get(
        payloads: *const Payloads,
        index: usize,
        payload: *mut *const c_void,
        byte_count: *mut usize,
    ) {
        let (payload, byte_count) = (Out::new(payload, "payload")?, Out::new(byte_count, "byte_count")?);
        let payloads = handle::get::<Held>(payloads)?;
        let bytes = payloads.0.get(index).ok_or_else(|| {
            Error::invalid("index", index, "argument", format!("must be below {}", payloads.0.len()))
        })?;
        payload.put(bytes.as_ptr().cast());
        byte_count.put(bytes.len());
        Ok(())
    }

    /// Releases them.
    fn uform_payloads_free(payloads: *mut Payloads) {
        handle::take::<Held>(payloads).map(drop)
    }
}
