//! Structs that grow: how one of an older or a newer caller is read and written.
//!
//! Each begins with `struct_size`, the size that the caller was compiled with. An older caller's struct ends early: the
//! fields it lacks have their defaults. A newer caller's is longer: what this version does not know must be zero.

use std::ptr;

use uform::error::{Error, Result};

/// The largest `struct_size` that is believed: a garbage size must not lead far away.
const SIZE_LIMIT: usize = 4096;

/// One field of a struct: its name, its offset and its size in bytes.
pub type Field = (&'static str, usize, usize);

/// A struct of the interface that begins with its size.
///
/// # Safety
/// The implementor is `repr(C)`, begins with a `usize`, has no padding at its end, and every bit pattern of it is a
/// valid value.
pub(crate) unsafe trait Versioned: Copy + Default {
    /// The fields in order, `struct_size` included.
    const FIELDS: &'static [Field];
}

/// Declares structs of the interface, each field with its default, and `LAYOUTS` of all.
macro_rules! versioned {
    ($(
        $(#[$meta:meta])*
        $name:ident, c $c:literal {
            $( $(#[$field_meta:meta])* $field:ident: $type:ty = $default:expr; )+
        }
    )+) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name {
                /// The size of this struct in bytes, as the caller was compiled.
                pub struct_size: usize,
                $( $(#[$field_meta])* pub $field: $type, )+
            }

            impl Default for $name {
                fn default() -> Self {
                    Self { struct_size: size_of::<Self>(), $( $field: $default, )+ }
                }
            }

            // SAFETY: the macro writes `repr(C)` and `struct_size` above, the assertion below sees to the end, and the
            // types of fields are integers, floats, pointers, optional functions, and arrays of them.
            unsafe impl $crate::versioned::Versioned for $name {
                const FIELDS: &'static [$crate::versioned::Field] = &[
                    ("struct_size", 0, size_of::<usize>()),
                    $( (stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>()), )+
                ];
            }

            // A field that a later version adds must not lie where this version has padding.
            const _: () = {
                let fields = <$name as $crate::versioned::Versioned>::FIELDS;
                let (_, offset, size) = fields[fields.len() - 1];
                assert!(offset + size == size_of::<$name>());
            };
        )+

        /// Every struct: its name in C, its size, its fields, and the bytes of its defaults.
        pub fn layouts() -> Vec<Layout> {
            vec![$( Layout {
                name: $c,
                size: size_of::<$name>(),
                fields: <$name as $crate::versioned::Versioned>::FIELDS,
                defaults: $crate::versioned::default_bytes::<$name>(),
            } ),+]
        }
    };
}

pub(crate) use versioned;

/// The bytes of each field of a default, one vector a field.
pub(crate) fn default_bytes<T: Versioned>() -> Vec<Vec<u8>> {
    let value = T::default();
    let bytes = T::FIELDS.iter().map(|(_, offset, size)| {
        let mut bytes = vec![0_u8; *size];
        // SAFETY: a field lies within the value, which lives; a field has no padding inside.
        unsafe {
            let start = ptr::from_ref(&value).cast::<u8>().add(*offset);
            ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), *size);
        }
        bytes
    });
    bytes.collect()
}

/// Reads the caller's size and checks that it is one of some version.
///
/// # Safety
/// `pointer` is valid for reading a `usize`.
unsafe fn size_of_caller<T: Versioned>(pointer: *const T, argument: &str) -> Result<usize> {
    // SAFETY: the caller of this function keeps the same promise; C may have aligned it as it likes.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    let known = size_of::<T>();
    let ends_a_field = T::FIELDS.iter().any(|(_, offset, field)| offset + field == size);
    if ends_a_field || (size > known && size <= SIZE_LIMIT) {
        return Ok(size);
    }
    let reason = format!(
        "must be the size of the struct, {known} bytes in this version; begin with the initialiser of the header"
    );
    Err(Error::invalid(format!("struct_size of {argument}"), size, "argument", reason))
}

/// Reads a struct of whatever version.
///
/// # Errors
/// `Invalid` for a null pointer, a size that no version has, and an unknown part that is not zero.
///
/// # Safety
/// `pointer` is null or valid for reads of as many bytes as its `struct_size` says.
pub(crate) unsafe fn read<T: Versioned>(pointer: *const T, argument: &str) -> Result<T> {
    if pointer.is_null() {
        return Err(crate::argument::null(argument));
    }
    // SAFETY: not null, and every struct begins with its size.
    let size = unsafe { size_of_caller(pointer, argument) }?;
    let known = size_of::<T>();
    let mut value = T::default();
    // SAFETY: the caller vouches for `size` bytes; at most `known` of them go to a value of that size, and any bytes
    // are a valid value by the contract of the trait.
    unsafe {
        let target = ptr::from_mut(&mut value).cast::<u8>();
        ptr::copy_nonoverlapping(pointer.cast::<u8>(), target, size.min(known));
    }
    for offset in known..size {
        // SAFETY: within the `size` bytes for which the caller vouches.
        let byte = unsafe { pointer.cast::<u8>().add(offset).read() };
        if byte != 0 {
            let reason = format!("is of a later version and asks for what version {} has not", crate::NUMBER);
            return Err(Error::invalid(argument, format!("byte {offset} is {byte}"), "argument", reason));
        }
    }
    Ok(value)
}

/// As [`read`]; a null pointer gives the defaults.
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn read_or_default<T: Versioned>(pointer: *const T, argument: &str) -> Result<T> {
    // SAFETY: the caller of this function keeps the same promise.
    if pointer.is_null() { Ok(T::default()) } else { unsafe { read(pointer, argument) } }
}

/// Reads `count` structs that lie one after the other, all of the first one's size.
///
/// # Errors
/// As [`read`], and `Invalid` for sizes that differ.
///
/// # Safety
/// `pointer` is null or valid for reads of `count` times the first one's `struct_size`.
pub(crate) unsafe fn read_array<T: Versioned>(
    pointer: *const T,
    count: usize,
    argument: &str,
) -> Result<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() {
        return Err(crate::argument::null(argument));
    }
    // SAFETY: not null, and every struct begins with its size.
    let size = unsafe { size_of_caller(pointer, argument) }?;
    let mut values = Vec::new();
    for position in 0..count {
        let name = format!("{argument}[{position}]");
        // SAFETY: within the `count` structs for which the caller vouches.
        let (own, value) = unsafe {
            let element = pointer.byte_add(position * size);
            (size_of_caller(element, &name)?, read(element, &name)?)
        };
        if own != size {
            let reason = format!("must be {size}, as that of the first");
            return Err(Error::invalid(format!("struct_size of {name}"), own, "argument", reason));
        }
        values.push(value);
    }
    Ok(values)
}

/// A place for a result struct, checked before the call that fills it.
pub(crate) struct Place<T> {
    pointer: *mut T,
    size: usize,
}

// SAFETY: the maker of a place vouched for it until its last use, on whatever thread.
unsafe impl<T> Send for Place<T> {}
// SAFETY: as above; whoever fills it is the only one to touch it.
unsafe impl<T> Sync for Place<T> {}

impl<T: Versioned> Place<T> {
    /// Checks the caller's struct.
    ///
    /// # Errors
    /// `Invalid` for a null pointer and a size that no version has.
    ///
    /// # Safety
    /// `pointer` is null, or valid for reads and writes of as many bytes as its `struct_size` says, until the last use
    /// of the place.
    pub(crate) unsafe fn new(pointer: *mut T, argument: &str) -> Result<Self> {
        if pointer.is_null() {
            return Err(crate::argument::null(argument));
        }
        // SAFETY: not null, and every struct begins with its size.
        Ok(Self { pointer, size: unsafe { size_of_caller(pointer, argument) }? })
    }

    /// The place of an array's element, `position` structs further.
    ///
    /// # Safety
    /// The array has that element.
    pub(crate) unsafe fn element(&self, position: usize) -> Self {
        // SAFETY: the caller vouches for the element.
        Self { pointer: unsafe { self.pointer.byte_add(position * self.size) }, size: self.size }
    }

    /// Writes what of the value the caller's version knows; the rest of a later version becomes zero.
    pub(crate) fn put(&self, value: &T) {
        let known = self.size.min(size_of::<T>());
        // SAFETY: the maker of this place vouched for `size` bytes there; the value has at least `known`.
        unsafe {
            let target = self.pointer.cast::<u8>();
            ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), target, known);
            ptr::write_bytes(target.add(known), 0, self.size - known);
            // The size stays the caller's.
            self.pointer.cast::<usize>().write_unaligned(self.size);
        }
    }
}

/// What tests compare with the header.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The name of the type in C.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: usize,
    /// Its fields in order.
    pub fields: &'static [Field],
    /// The bytes of each field's default, in the same order.
    pub defaults: Vec<Vec<u8>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structure::{Adamw, StepReport};

    /// A struct of a later version, with one more field.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Later {
        adamw: Adamw,
        more: u64,
    }

    fn read_later(more: u64) -> Result<Adamw> {
        let size = size_of::<Later>();
        let adamw = Adamw { struct_size: size, beta1: 0.5, ..Adamw::default() };
        let later = Later { adamw, more };
        // SAFETY: the struct lives, and its size is told.
        unsafe { read(ptr::from_ref(&later).cast::<Adamw>(), "adamw") }
    }

    #[test]
    fn a_later_struct_is_read_if_it_asks_for_nothing_new() {
        assert_eq!(read_later(0).expect("zero").beta1, 0.5);
        let error = read_later(1 << 40).expect_err("unknown").to_string();
        assert!(error.contains("later version"), "{error}");
    }

    #[test]
    fn an_earlier_struct_has_the_defaults_of_what_it_lacks() {
        // As a version that ended with beta1 would give it.
        let end = std::mem::offset_of!(Adamw, beta2);
        let earlier = Adamw { struct_size: end, learning_rate: 2.0, beta2: 0.0, ..Adamw::default() };
        // SAFETY: the struct lives and is longer than it says.
        let read = unsafe { read(&raw const earlier, "adamw") }.expect("earlier");
        assert_eq!((read.learning_rate, read.beta2), (2.0, Adamw::default().beta2));
    }

    #[test]
    fn sizes_of_no_version_are_refused() {
        for size in [0, 1, 7, 12, size_of::<Adamw>() - 1, SIZE_LIMIT + 1, usize::MAX] {
            let wrong = Adamw { struct_size: size, ..Adamw::default() };
            // SAFETY: refused by its size before anything else is read.
            let error = unsafe { read(&raw const wrong, "adamw") }.expect_err("refused").to_string();
            assert!(error.starts_with("struct_size of adamw"), "{error}");
        }
        // SAFETY: null is refused.
        assert!(unsafe { read(ptr::null::<Adamw>(), "adamw") }.is_err());
    }

    #[test]
    fn a_result_fills_what_its_caller_knows() {
        #[repr(C)]
        struct Guarded {
            report: StepReport,
            guard: u64,
        }
        let value = StepReport { step: 7, ..StepReport::default() };
        let mut target = Guarded { report: StepReport::default(), guard: 9 };
        target.report.struct_size = std::mem::offset_of!(StepReport, seconds);
        target.report.seconds = 5.0;
        // SAFETY: the struct lives as long as the place.
        unsafe { Place::new(&raw mut target.report, "report") }.expect("earlier").put(&value);
        assert_eq!((target.report.step, target.report.seconds, target.guard), (7, 5.0, 9));
        target.report.struct_size = size_of::<Guarded>();
        // SAFETY: as above; the guard is the unknown part of a later version.
        unsafe { Place::new(&raw mut target.report, "report") }.expect("later").put(&value);
        assert_eq!((target.report.seconds, target.guard), (0.0, 0));
        assert_eq!(target.report.struct_size, size_of::<Guarded>());
    }

    #[test]
    fn elements_of_an_array_are_of_one_size() {
        let mut pair = [StepReport::default(), StepReport::default()];
        // SAFETY: both structs live.
        assert_eq!(unsafe { read_array(pair.as_ptr(), 2, "pair") }.expect("alike").len(), 2);
        pair[1].struct_size = 8;
        // SAFETY: as above.
        let error = unsafe { read_array(pair.as_ptr(), 2, "pair") }.expect_err("refused").to_string();
        assert!(error.starts_with("struct_size of pair[1]"), "{error}");
        // SAFETY: nothing is read.
        assert!(unsafe { read_array(ptr::null::<StepReport>(), 0, "pair") }.expect("none").is_empty());
    }
}
