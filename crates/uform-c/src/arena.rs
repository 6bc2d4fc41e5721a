//! Arenas: where this member's part lies, and those of the others.

use std::ffi::c_void;

use uform::error::Error;

use crate::argument::Out;
use crate::handle::{self, Arena, Handled};
use crate::verbs;

/// An arena as C holds it.
pub(crate) struct Held(pub(crate) uform::Arena);

impl Handled for Held {
    type Handle = Arena;
    const NOUN: &'static str = "arena";
}

verbs! {
    /// The bytes of this member's own part.
    fn uform_arena_byte_count(arena: *const Arena, byte_count: *mut usize) {
        let byte_count = Out::new(byte_count, "byte_count")?;
        byte_count.put(handle::get::<Held>(arena)?.0.byte_count());
        Ok(())
    }

    /// Takes the next free bytes of this member's part.
    fn uform_arena_take(arena: *const Arena, byte_count: usize, pointer: *mut *mut c_void) {
        let pointer = Out::handle(pointer, "pointer")?;
        let arena = handle::get::<Held>(arena)?;
        let range = arena.0.take(byte_count)?;
        pointer.put(arena.0.own(range)?.pointer().cast());
        Ok(())
    }

    /// On how many GPUs of this process it lies.
    fn uform_arena_device_count(arena: *const Arena, device_count: *mut usize) {
        let device_count = Out::new(device_count, "device_count")?;
        device_count.put(handle::get::<Held>(arena)?.0.device_count());
        Ok(())
    }

    /// Takes the next free bytes on one of its GPUs.
    fn uform_arena_take_on(arena: *const Arena, device: usize, byte_count: usize, address: *mut u64) {
        let address = Out::new(address, "address")?;
        let arena = handle::get::<Held>(arena)?;
        // Looked up before anything is taken.
        arena.0.device_bytes(device, 0..0)?;
        let range = arena.0.take_on(device, byte_count)?;
        address.put(arena.0.device_bytes(device, range)?.address()?);
        Ok(())
    }

    /// Where the part of a member lies.
    fn uform_arena_part(arena: *const Arena, index: usize, pointer: *mut *mut c_void, byte_count: *mut usize) {
        let (pointer, byte_count) = (Out::handle(pointer, "pointer")?, Out::new(byte_count, "byte_count")?);
        let arena = handle::get::<Held>(arena)?;
        let part = arena.0.part_mut(index).ok_or_else(|| {
            Error::invalid("index", index, "argument", "no member of the mesh has it")
        })?;
        pointer.put(part.pointer().cast());
        byte_count.put(part.byte_count());
        Ok(())
    }

    /// Releases this member's hold of the memory.
    fn uform_arena_free(arena: *mut Arena) {
        handle::take::<Held>(arena).map(drop)
    }
}
