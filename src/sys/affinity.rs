//! The cores that the calling thread may run on.

use crate::error::{Error, Result};

/// The bits of one word of a mask.
const WORD_BITS: usize = usize::BITS as usize;

/// The widest mask that is asked for: far beyond any machine, small enough to allocate at once.
const WORDS_LIMIT: usize = (1 << 20) / WORD_BITS;

/// The cores that the calling thread may run on, ascending.
///
/// # Errors
/// `Io` if the kernel refuses the call (a sandbox).
pub fn get_affinity() -> Result<Vec<u32>> {
    let mut words = vec![0_usize; 1024 / WORD_BITS];
    loop {
        let bytes = std::mem::size_of_val(words.as_slice());
        // SAFETY: the pointer and length are those of `words`, which lives through the call and which the kernel
        // fills with any bits; every bit pattern is a valid usize.
        let code = unsafe { libc::sched_getaffinity(0, bytes, words.as_mut_ptr().cast::<libc::cpu_set_t>()) };
        if code == 0 {
            return Ok(cores_of(&words));
        }
        let error = std::io::Error::last_os_error();
        // The kernel refuses a mask narrower than its own.
        if error.raw_os_error() == Some(libc::EINVAL) && words.len() < WORDS_LIMIT {
            words = vec![0; words.len() * 4];
            continue;
        }
        return Err(Error::io("/proc/self/status", "read the affinity in", error));
    }
}

/// Lets the calling thread run on these cores only.
///
/// # Errors
/// `Invalid` for no core at all or a number beyond any machine; `Io` if the kernel allows none of them here.
pub fn pin_current_thread(cores: &[u32]) -> Result<()> {
    let highest = cores.iter().max().map_or(0, |core| *core as usize);
    if cores.is_empty() || highest >= WORDS_LIMIT * WORD_BITS {
        let reason = "must name at least one core of this machine";
        return Err(Error::invalid("cores", format!("{cores:?}"), "placement", reason));
    }
    let mut words = vec![0_usize; highest / WORD_BITS + 1];
    for core in cores {
        words[*core as usize / WORD_BITS] |= 1 << (*core as usize % WORD_BITS);
    }
    let bytes = std::mem::size_of_val(words.as_slice());
    // SAFETY: the pointer and length are those of `words`, which lives through the call; the kernel only reads it.
    let code = unsafe { libc::sched_setaffinity(0, bytes, words.as_ptr().cast::<libc::cpu_set_t>()) };
    if code == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Error::io("/proc/self/status", format!("pin a thread to cores {cores:?} in"), error))
}

/// Lets the calling thread run on those of these cores that it may run on already: its mask is never widened.
///
/// # Errors
/// `Invalid` if it may run on none of them; as [`pin_current_thread`].
pub fn narrow_current_thread(cores: &[u32]) -> Result<()> {
    let mut own = get_affinity()?;
    own.retain(|core| cores.contains(core));
    if own.is_empty() {
        let reason = "has no core that this thread may run on";
        return Err(Error::invalid("cores", format!("{cores:?}"), "placement", reason));
    }
    pin_current_thread(&own)
}

/// The core that the calling thread runs on at this moment; `None` where the kernel does not tell.
#[must_use]
pub fn current_core() -> Option<u32> {
    // SAFETY: it takes nothing, and touches no memory of ours.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

fn cores_of(words: &[usize]) -> Vec<u32> {
    let mut cores = Vec::new();
    for (position, word) in words.iter().enumerate() {
        for bit in (0..WORD_BITS).filter(|bit| word >> bit & 1 == 1) {
            cores.push((position * WORD_BITS + bit) as u32);
        }
    }
    cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_to_one_of_its_cores_and_back() {
        let thread = std::thread::spawn(|| {
            let all = get_affinity().expect("affinity can be read");
            let last = *all.last().expect("there is a core");
            pin_current_thread(&[last]).expect("an own core is allowed");
            assert_eq!(get_affinity().expect("affinity can be read"), [last]);
            assert_eq!(current_core(), Some(last));
            pin_current_thread(&all).expect("the old mask is allowed");
            assert_eq!(get_affinity().expect("affinity can be read"), all);
        });
        thread.join().expect("no assertion failed");
    }

    #[test]
    fn a_mask_is_narrowed_and_never_widened() {
        let thread = std::thread::spawn(|| {
            let all = get_affinity().expect("affinity can be read");
            let first = all[0];
            narrow_current_thread(&[first, 900_000]).expect("one of them is its own");
            assert_eq!(get_affinity().expect("affinity can be read"), [first]);
            let error = narrow_current_thread(&[900_000]).expect_err("none is its own").to_string();
            assert!(error.contains("has no core that this thread may run on"), "{error}");
            narrow_current_thread(&all).expect("its own core is among them");
            assert_eq!(get_affinity().expect("affinity can be read"), [first]);
        });
        thread.join().expect("no assertion failed");
    }

    #[test]
    fn cores_that_are_not_there_are_refused() {
        assert!(matches!(pin_current_thread(&[]), Err(Error::Invalid { .. })));
        assert!(matches!(pin_current_thread(&[u32::MAX]), Err(Error::Invalid { .. })));
        assert!(matches!(pin_current_thread(&[900_000]), Err(Error::Io { .. })));
    }

    #[test]
    fn bits_are_counted_over_words() {
        assert_eq!(cores_of(&[0b101, 1 << 63]), [0, 2, 127]);
    }
}
