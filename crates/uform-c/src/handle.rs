//! Handles: what C holds instead of an object, and how a wrong one is told from a right one.
//!
//! A handle is a number in the shape of a pointer, never an address, and never given twice. So one that was freed, that
//! is of another kind, or that this library never gave is an error and touches no memory.

use std::any::Any;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use uform::error::{Error, Result};

/// Handles are odd, and no object of C lies at an odd multiple like this one's.
const FIRST: usize = 0x107;
const STEP: usize = 16;

/// Declares the opaque types that C names.
macro_rules! opaque {
    ($( $(#[$meta:meta])* $name:ident; )+) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Debug)]
            pub struct $name {
                never: [u8; 0],
            }
        )+
    };
}

opaque! {
    /// Threads or streams that run the calls of one process.
    Executor;
    /// The processes of a run.
    Mesh;
    /// Memory that the processes of a host share.
    Arena;
    /// The byte strings of all members.
    Payloads;
    /// Parameters, gradients and the optimizer's state.
    Trainer;
    /// A call that goes on after it was submitted.
    Deferred;
}

/// An object that C holds by a handle.
pub(crate) trait Handled: Any + Send + Sync {
    /// What C calls it.
    type Handle;
    /// The noun in its name and in messages.
    const NOUN: &'static str;
}

struct Entry {
    noun: &'static str,
    object: Arc<dyn Any + Send + Sync>,
}

/// The handles that one process gave.
struct Registry {
    /// A forked child must not wait for a lock that another thread of its parent held, so it has a registry of its own.
    pid: u32,
    /// Handles below this one are the parent's.
    first: usize,
    /// A tree, in which checkers of memory find what is still held; a hash table points into the middle of its memory.
    entries: RwLock<BTreeMap<usize, Entry>>,
    /// The parent's, never freed and never locked here.
    earlier: *const Registry,
}

static CURRENT: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());
static NEXT: AtomicUsize = AtomicUsize::new(FIRST);

impl Registry {
    fn current() -> &'static Self {
        let pid = std::process::id();
        let mut found = CURRENT.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a registry that was leaked below and lives as long as the process.
            if let Some(registry) = unsafe { found.as_ref() }
                && registry.pid == pid
            {
                return registry;
            }
            let (first, entries) = (NEXT.load(Ordering::Relaxed), RwLock::default());
            let fresh = Box::into_raw(Box::new(Self { pid, first, entries, earlier: found }));
            match CURRENT.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: just made, and leaked: nobody frees it.
                Ok(_) => return unsafe { &*fresh },
                Err(other) => {
                    // SAFETY: just made, and nobody else has seen it.
                    drop(unsafe { Box::from_raw(fresh) });
                    found = other;
                }
            }
        }
    }

    /// Why there is no such handle.
    fn refusal(&self, noun: &str, number: usize) -> Error {
        let given = number >= FIRST && number < NEXT.load(Ordering::Relaxed) && number % STEP == FIRST % STEP;
        if !given {
            let reason = "is no handle that this library gave";
            return Error::invalid(noun, format!("{number:#x}"), "argument", reason);
        }
        let mut registry = self;
        while number < registry.first {
            // SAFETY: null, or leaked as above.
            let Some(earlier) = (unsafe { registry.earlier.as_ref() }) else { break };
            registry = earlier;
        }
        let why = if registry.pid == self.pid {
            "it was freed".to_owned()
        } else {
            format!("it was made before a fork, in process {}; make one in this process", registry.pid)
        };
        Error::Closed { what: format!("the {noun}"), why }
    }
}

/// Gives an object to C.
pub(crate) fn give<T: Handled>(object: T) -> *mut T::Handle {
    let registry = Registry::current();
    let number = NEXT.fetch_add(STEP, Ordering::Relaxed);
    let entry = Entry { noun: T::NOUN, object: Arc::new(object) };
    registry.entries.write().unwrap_or_else(PoisonError::into_inner).insert(number, entry);
    ptr::without_provenance_mut(number)
}

/// The object of a handle, alive for as long as the caller of this function keeps it.
///
/// # Errors
/// `Invalid` for a null pointer, a handle of another kind and what is no handle; `Closed` for a freed one and one of a
/// parent process.
pub(crate) fn get<T: Handled>(handle: *const T::Handle) -> Result<Arc<T>> {
    if handle.is_null() {
        return Err(crate::argument::null(T::NOUN));
    }
    let registry = Registry::current();
    let entries = registry.entries.read().unwrap_or_else(PoisonError::into_inner);
    let Some(entry) = entries.get(&handle.addr()) else {
        return Err(registry.refusal(T::NOUN, handle.addr()));
    };
    Arc::clone(&entry.object).downcast::<T>().map_err(|_| {
        let reason = format!("is of another kind: {}", entry.noun);
        Error::invalid(T::NOUN, format!("{:#x}", handle.addr()), "argument", reason)
    })
}

/// Takes a handle back from C; `None` for a null pointer, which is no error.
///
/// # Errors
/// As [`get`].
pub(crate) fn take<T: Handled>(handle: *mut T::Handle) -> Result<Option<Arc<T>>> {
    if handle.is_null() {
        return Ok(None);
    }
    let object = get::<T>(handle)?;
    let registry = Registry::current();
    let entry = registry.entries.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
    // Another thread may have freed it meanwhile: one of both is told.
    match entry {
        Some(_) => Ok(Some(object)),
        None => Err(registry.refusal(T::NOUN, handle.addr())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Apple(u32);
    struct Pear;

    impl Handled for Apple {
        type Handle = Mesh;
        const NOUN: &'static str = "apple";
    }

    impl Handled for Pear {
        type Handle = Mesh;
        const NOUN: &'static str = "pear";
    }

    fn said<T>(result: Result<T>) -> String {
        result.err().expect("refused").to_string()
    }

    #[test]
    fn a_handle_leads_to_its_object_until_it_is_freed() {
        let handle = give(Apple(7));
        assert_eq!(get::<Apple>(handle).expect("given").0, 7);
        assert!(said(get::<Pear>(handle)).contains("is of another kind: apple"));
        assert!(said(take::<Pear>(handle)).contains("is of another kind: apple"));
        assert_eq!(take::<Apple>(handle).expect("given").expect("not null").0, 7);
        assert!(said(take::<Apple>(handle)).contains("freed"));
        assert!(said(get::<Apple>(handle)).contains("freed"));
        assert_ne!(give(Apple(8)), handle, "never given twice");
    }

    #[test]
    fn what_is_no_handle_is_told() {
        assert!(take::<Apple>(ptr::null_mut()).expect("null may be freed").is_none());
        assert!(said(get::<Apple>(ptr::null())).starts_with("apple = NULL"));
        let local = 5_u64;
        for foreign in [ptr::from_ref(&local).cast(), ptr::without_provenance(8), ptr::without_provenance(!0)]
        {
            assert!(said(get::<Apple>(foreign)).contains("no handle"));
        }
    }

    #[test]
    fn a_handle_is_freed_once_by_any_number_of_threads() {
        let number = give(Apple(1)).addr();
        let free = move || take::<Apple>(ptr::without_provenance_mut(number)).is_ok();
        let threads = (0..4).map(|_| std::thread::spawn(free)).collect::<Vec<_>>();
        let freed = threads.into_iter().map(|thread| thread.join().expect("joined"));
        assert_eq!(freed.filter(|freed| *freed).count(), 1);
    }
}
