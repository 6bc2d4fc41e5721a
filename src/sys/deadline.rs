//! One deadline for a whole call, passed down through every wait, with the caller's interrupt check.

use std::time::{Duration, Instant};

use crate::error::{Error, Missing, Result};

/// Asked at least every 50 ms while a call waits; `true` ends the call with `Interrupted`.
pub type InterruptCheck<'a> = &'a (dyn Fn() -> bool + Sync);

/// Asked as often: what makes a wait vain, which ends it with that error.
type VainCheck<'a> = &'a (dyn Fn() -> Result<()> + Sync);

/// The longest a wait may last without asking the interrupt check, the deadline and the peers.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(40);

/// What tells the time and lets it pass.
pub trait Clock: Sync {
    /// The time now.
    fn now(&self) -> Instant;
    /// Waits.
    fn sleep(&self, duration: Duration);
}

/// When a call must have ended, and whether its caller wants it to end now.
#[derive(Clone, Copy)]
pub struct Deadline<'a> {
    start: Instant,
    limit: Duration,
    interrupt: Option<InterruptCheck<'a>>,
    vain: Option<VainCheck<'a>>,
    /// Another clock than the system's.
    clock: Option<&'a dyn Clock>,
}

impl std::fmt::Debug for Deadline<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Deadline({:?} of {:?})", self.waited(), self.limit)
    }
}

impl Deadline<'static> {
    /// A deadline this long from now, without an interrupt check.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self { start: Instant::now(), limit, interrupt: None, vain: None, clock: None }
    }

    /// A deadline of so many seconds from now; 0 means `default_seconds`.
    ///
    /// # Errors
    /// `Invalid` for a negative number, NaN, or infinity, naming `argument`.
    pub fn after_seconds(seconds: f64, default_seconds: f64, argument: &str) -> Result<Self> {
        if !seconds.is_finite() || seconds < 0.0 {
            let reason = "must be a finite number of seconds, 0 or more";
            return Err(Error::invalid(argument, seconds, "argument", reason));
        }
        let seconds = if seconds == 0.0 { default_seconds } else { seconds };
        // Durations beyond ten years only differ in whether `Instant` can hold them.
        Ok(Self::after(Duration::from_secs_f64(seconds.min(3.2e8))))
    }
}

impl<'a> Deadline<'a> {
    /// The same deadline, with this interrupt check.
    #[must_use]
    pub fn interruptible<'b>(self, interrupt: InterruptCheck<'b>) -> Deadline<'b>
    where
        'a: 'b,
    {
        Deadline { interrupt: Some(interrupt), ..self }
    }

    /// The same deadline for a wait that also ends when this check fails.
    #[must_use]
    pub fn unless_vain<'b>(self, vain: VainCheck<'b>) -> Deadline<'b>
    where
        'a: 'b,
    {
        Deadline { vain: Some(vain), ..self }
    }

    /// The same deadline without such a check.
    #[must_use]
    pub fn in_any_case(self) -> Self {
        Self { vain: None, ..self }
    }

    /// The same limit from now on, by this clock.
    #[must_use]
    pub fn by<'b>(self, clock: &'b dyn Clock) -> Deadline<'b>
    where
        'a: 'b,
    {
        Deadline { start: clock.now(), clock: Some(clock), ..self }
    }

    fn now(&self) -> Instant {
        self.clock.map_or_else(Instant::now, Clock::now)
    }

    /// Waits so long, by the deadline's clock.
    pub fn sleep(&self, duration: Duration) {
        match self.clock {
            Some(clock) => clock.sleep(duration),
            None => std::thread::sleep(duration),
        }
    }

    /// A deadline at most this long from now, never later than this one, with the same interrupt check.
    #[must_use]
    pub fn sooner(&self, limit: Duration) -> Self {
        Self { start: self.now(), limit: limit.min(self.remaining()), ..*self }
    }

    /// How long the call has lasted.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.now().saturating_duration_since(self.start)
    }

    /// The whole time that was given.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// What is left of it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.limit.saturating_sub(self.waited())
    }

    /// Whether it has passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// How long one sleep may last now: to the deadline, and never longer than [`CHECK_INTERVAL`].
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.remaining().min(CHECK_INTERVAL)
    }

    /// Asks the interrupt check, and whether the wait is vain.
    ///
    /// # Errors
    /// `Interrupted`, naming `phase`, if the caller wants to stop; what makes the wait vain.
    pub fn check_interrupt(&self, phase: &str) -> Result<()> {
        self.check_interrupt_of(|| phase.to_owned())
    }

    /// As [`Deadline::check_interrupt`], with a phase that is made only for the error.
    ///
    /// # Errors
    /// As [`Deadline::check_interrupt`].
    pub fn check_interrupt_of(&self, phase: impl FnOnce() -> String) -> Result<()> {
        match self.interrupt {
            Some(interrupt) if interrupt() => {
                Err(Error::Interrupted { phase: phase(), waited: self.waited() })
            }
            _ => self.vain.map_or(Ok(()), |vain| vain()),
        }
    }

    /// Asks the interrupt check and the clock.
    ///
    /// # Errors
    /// As [`Deadline::check_interrupt`], or `TimedOut` with what `missing` then says.
    pub fn check(&self, phase: &str, missing: impl FnOnce() -> Vec<Missing>) -> Result<()> {
        self.check_interrupt(phase)?;
        if self.passed() {
            return Err(Error::TimedOut {
                phase: phase.to_owned(),
                waited: self.waited(),
                missing: missing(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_seconds_mean_the_default_and_odd_numbers_are_refused() {
        assert_eq!(
            Deadline::after_seconds(0.0, 300.0, "timeout_seconds").expect("zero is legal").limit(),
            Duration::from_secs(300)
        );
        for seconds in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let error = Deadline::after_seconds(seconds, 1.0, "timeout_seconds").expect_err("refused");
            assert!(error.to_string().starts_with("timeout_seconds = "), "{error}");
        }
        assert!(Deadline::after_seconds(f64::MAX, 1.0, "timeout_seconds").is_ok());
    }

    #[test]
    fn an_interrupt_ends_before_the_deadline() {
        let stop = || true;
        let deadline = Deadline::after(Duration::from_secs(60)).interruptible(&stop);
        let error = deadline.check("a test", Vec::new).expect_err("interrupted");
        assert!(matches!(error, Error::Interrupted { .. }));
    }

    #[test]
    fn what_makes_a_wait_vain_ends_it_with_its_own_error() {
        let lost =
            || Err(Error::Lost { index: 3, host: "here".to_owned(), pid: 5, phase: "split".to_owned() });
        let deadline = Deadline::after(Duration::from_secs(60)).unless_vain(&lost);
        let error = deadline.sooner(Duration::from_secs(1)).check("a test", Vec::new).expect_err("vain");
        assert!(matches!(error, Error::Lost { index: 3, .. }));
        assert!(deadline.in_any_case().check("a test", Vec::new).is_ok());
    }
}
