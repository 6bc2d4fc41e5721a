//! Which memory domains the pages come from that a thread takes.
//!
//! A wish and no demand: a domain that is full is passed over. A kernel or sandbox that knows no such wish gives pages from where it
//! likes, which is right too.

use libc::{c_int, c_long, c_ulong};

/// The bits of one word of a set of domains.
const WORD_BITS: usize = c_ulong::BITS as usize;

/// As many domains as any kernel counts.
const WORDS: usize = 1024 / WORD_BITS;

/// Several domains, none of them a must; libc has no name for it yet.
const PREFERRED_MANY: c_int = 5;

/// What a thread asks of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    mode: c_int,
    domains: [c_ulong; WORDS],
}

impl Policy {
    fn preferring(domains: &[u32], mode: c_int) -> Self {
        let mut words = [0; WORDS];
        for domain in
            domains.iter().map(|domain| *domain as usize).filter(|domain| *domain < WORDS * WORD_BITS)
        {
            words[domain / WORD_BITS] |= 1 << (domain % WORD_BITS);
        }
        Self { mode, domains: words }
    }

    /// The calling thread's; `None` where the system does not tell.
    fn get() -> Option<Self> {
        let mut own = Self { mode: 0, domains: [0; WORDS] };
        // One more than there are bits: the kernel takes one off.
        let bits = (WORDS * WORD_BITS) as c_ulong;
        let no_address: c_ulong = 0;
        // SAFETY: the kernel writes one int and at most `bits` bits, which the fields have; no address is looked at.
        let code: c_long = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut own.mode,
                own.domains.as_mut_ptr(),
                bits,
                no_address,
                0 as c_ulong,
            )
        };
        (code == 0).then_some(own)
    }

    /// Makes it the calling thread's; false where the system forbids it or does not know it.
    fn set(&self) -> bool {
        let bits = (WORDS * WORD_BITS) as c_ulong;
        let is_empty = self.domains.iter().all(|word| *word == 0);
        let domains = if is_empty { std::ptr::null() } else { self.domains.as_ptr() };
        let bits = if is_empty { 0 } else { bits };
        // SAFETY: the kernel reads at most `bits` bits, which the field has.
        let code: c_long =
            unsafe { libc::syscall(libc::SYS_set_mempolicy, c_long::from(self.mode), domains, bits) };
        code == 0
    }
}

/// Gives a thread its policy back.
struct Restore(Policy);

impl Drop for Restore {
    fn drop(&mut self) {
        if !self.0.set() {
            tracing::debug!("a thread keeps the memory policy of a call");
        }
    }
}

/// Runs work whose new pages come from these domains, as far as the system can; no domain is no wish.
pub fn near<R>(domains: &[u32], work: impl FnOnce() -> R) -> R {
    let before = if domains.is_empty() { None } else { Policy::get() };
    let Some(before) = before else { return work() };
    // Kernels before 5.15 prefer one domain only.
    let several = Policy::preferring(domains, PREFERRED_MANY);
    let one = Policy::preferring(&domains[..1], libc::MPOL_PREFERRED);
    let is_set = several.set() || one.set();
    let _restore = is_set.then_some(Restore(before));
    if !is_set {
        tracing::debug!(?domains, "this system places no memory");
    }
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_holds_for_the_work_alone() {
        let before = Policy::get();
        let inside = near(&[0], Policy::get);
        if let (Some(before), Some(inside)) = (before, inside) {
            // Where the system forbids it, nothing changes.
            assert!(inside == before || inside.domains[0] == 1, "{inside:?}");
        }
        assert_eq!(Policy::get(), before);
        let caught = std::panic::catch_unwind(|| near(&[0], || panic!("in the work")));
        caught.expect_err("it panicked");
        assert_eq!(Policy::get(), before);
        assert_eq!(near(&[], Policy::get), before);
        // A domain that no machine has is no error.
        assert_eq!(near(&[1 << 20], || 7), 7);
        assert_eq!(near(&[1000], || 7), 7);
    }
}
