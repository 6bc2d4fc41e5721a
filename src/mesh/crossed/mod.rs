//! Calls of overlapping meshes that are made in crossed order: members that wait for each other in a circle say so.
//!
//! A call that has waited a second for others to enter it looks, at each further look of its wait, for questions that came over the
//! groups of this member, and asks its own. Before that it costs nothing.

mod inquiry;

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use self::inquiry::{Circle, Inquiry, PATIENCE, Question};
use super::{Inner, Mesh, RUN};
use crate::communicator::control::CROSSED;
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::recorder::Site;
use crate::sys::random;
use crate::vocabulary::Verb;

/// A mesh of one member and all meshes that were split from it.
#[derive(Debug)]
pub(super) struct Family {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inquiry: Inquiry,
    meshes: Vec<(u64, Weak<Inner>)>,
    mesh_count: u64,
    /// All executors that a handle of these meshes has had, by identity.
    executors: Vec<usize>,
    waits: Vec<Known>,
    /// How many calls had been submitted to these meshes when last counted.
    submitted: u64,
}

/// A wait that others are asked about.
#[derive(Clone, Debug)]
struct Known {
    number: u64,
    mesh: u64,
    executor: Executor,
    is_deferred: bool,
}

impl Known {
    /// Whether whoever made the call goes on only when it ends. Else the next call may come by an executor that is made meanwhile.
    fn keeps_its_caller(&self) -> bool {
        !self.is_deferred || self.executor.is_awaited()
    }
}

thread_local! {
    /// Whether this thread runs a deferred call.
    static IS_DEFERRED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a deferred call.
pub(super) fn deferred<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_DEFERRED.set(self.0);
        }
    }
    let _restore = Restore(IS_DEFERRED.replace(true));
    work()
}

impl Family {
    /// That of a first mesh.
    ///
    /// # Errors
    /// `Io` if the kernel gives no random bytes.
    pub(super) fn new() -> Result<Arc<Self>> {
        let own = u64::from_le_bytes(random::bytes()?);
        let state = State {
            inquiry: Inquiry::new(own),
            meshes: Vec::new(),
            mesh_count: 0,
            executors: Vec::new(),
            waits: Vec::new(),
            submitted: 0,
        };
        Ok(Arc::new(Self { start: Instant::now(), state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a mesh in.
    pub(super) fn join(&self, mesh: &Arc<Inner>) {
        let mut state = self.state();
        state.mesh_count += 1;
        let number = state.mesh_count;
        state.meshes.retain(|(_, known)| known.strong_count() > 0);
        state.meshes.push((number, Arc::downgrade(mesh)));
    }

    /// Notes that a handle of one of the meshes makes its calls on this executor.
    pub(super) fn lend(&self, executor: &Executor) {
        let identity = executor.identity();
        let mut state = self.state();
        if !state.executors.contains(&identity) {
            state.executors.push(identity);
        }
    }

    fn meshes(&self) -> Vec<(u64, Arc<Inner>)> {
        let state = self.state();
        state.meshes.iter().filter_map(|(number, mesh)| Some((*number, mesh.upgrade()?))).collect()
    }

    /// The wait that must end before this member can enter the next call of a mesh, if one is known.
    fn blocking(&self, mesh: &Inner) -> Option<Known> {
        let next = mesh.order.first_executor();
        let state = self.state();
        // A call that is made later stands in the line of the only executor that there is.
        let executor = next.or(match state.executors[..] {
            [only] => Some(only),
            _ => None,
        })?;
        let blocks = |wait: &&Known| {
            wait.executor.identity() == executor && (next.is_some() || wait.keeps_its_caller())
        };
        state.waits.iter().find(blocks).cloned()
    }

    /// Hears what is asked in all meshes but `own`, and passes it on.
    fn hear(&self, own: &Inner) {
        let meshes = self.meshes();
        let submitted = meshes.iter().map(|(_, mesh)| mesh.order.submitted()).sum::<u64>();
        {
            let mut state = self.state();
            if state.submitted != submitted {
                state.submitted = submitted;
                state.inquiry.hurry(self.start.elapsed());
            }
        }
        for (number, mesh) in &meshes {
            if std::ptr::eq(&raw const **mesh, own) {
                continue;
            }
            for (_, bytes) in mesh.communicator.asked() {
                let Some(question) = Question::from_bytes(&bytes) else { continue };
                if mesh.communicator.entered() >= question.call {
                    continue;
                }
                let Some(wait) = self.blocking(mesh) else { continue };
                let further = self.state().inquiry.hear(wait.number, *number, question);
                let next = meshes.iter().find(|(number, _)| *number == wait.mesh);
                if let (Some(further), Some((_, next))) = (further, next) {
                    pass_on(next, &further);
                }
            }
        }
    }
}

/// Puts a question to all that a member waits for in a mesh.
fn pass_on(mesh: &Inner, question: &Question) {
    if let Some((call, lagging)) = mesh.communicator.entering() {
        for seat in lagging {
            mesh.communicator.ask(seat, &Question { call, ..question.clone() }.to_bytes());
        }
    }
}

/// One call as it is watched for a circle; only a wait of a second makes anything of it.
pub(super) struct Watch<'a> {
    mesh: &'a Mesh,
    verb: Verb,
    site: Site,
    is_deferred: bool,
    begun: Mutex<Begun>,
}

#[derive(Default)]
struct Begun {
    since: Option<Instant>,
    number: Option<u64>,
    words: String,
}

impl<'a> Watch<'a> {
    pub(super) fn new(mesh: &'a Mesh, verb: Verb, site: Site) -> Self {
        let begun = Begun { since: None, number: None, words: String::new() };
        Self { mesh, verb, site, is_deferred: IS_DEFERRED.get(), begun: Mutex::new(begun) }
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call as messages name it.
    fn words(&self, call: u64) -> String {
        let Inner { name, index, .. } = &*self.mesh.inner;
        let group = if name == RUN { String::new() } else { format!(" of {name}") };
        let place = if self.site == Site::default() { String::new() } else { format!(" at {}", self.site) };
        format!("{} #{call}{group}{place}, index {index} there", self.verb.word())
    }

    /// Asked at each look of a wait.
    ///
    /// # Errors
    /// `Disagreed` if the wait is part of a circle.
    pub(super) fn look(&self) -> Result<()> {
        let mut begun = self.begun();
        if begun.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return Ok(());
        }
        let inner = &*self.mesh.inner;
        let family = &inner.family;
        let Some((call, lagging)) = inner.communicator.entering() else {
            // Payload moves: all have entered.
            Self::forget(family, &mut begun);
            return Ok(());
        };
        let now = family.start.elapsed();
        let number = match begun.number {
            Some(number) => number,
            None => {
                begun.words = self.words(call);
                let mut state = family.state();
                let own = state.meshes.iter().find(|(_, mesh)| std::ptr::eq(mesh.as_ptr(), inner));
                let Some(mesh) = own.map(|(number, _)| *number) else { return Ok(()) };
                let number = state.inquiry.begin(begun.words.clone(), now);
                let (executor, is_deferred) = (self.mesh.executor().clone(), self.is_deferred);
                state.waits.push(Known { number, mesh, executor, is_deferred });
                *begun.number.insert(number)
            }
        };
        family.hear(inner);
        let (circle, question) = {
            let mut state = family.state();
            (state.inquiry.circle(number), state.inquiry.ask(number, call, now))
        };
        if let Some(Circle { seat, words }) = circle {
            let mine = begun.words.clone();
            // Before the others are told: a member that is free again finds this one gone.
            inner.communicator.cross(&words);
            return Err(Error::Disagreed { field: CROSSED.to_owned(), mine, theirs: words, index: seat });
        }
        if let Some(question) = question {
            for seat in lagging {
                let first = seat as u32;
                inner.communicator.ask(seat, &Question { first, ..question.clone() }.to_bytes());
            }
        }
        Ok(())
    }

    /// Gives the meshes in which others wait for this member because it waited here.
    fn forget(family: &Family, begun: &mut Begun) -> Vec<Arc<Inner>> {
        let Some(number) = begun.number.take() else { return Vec::new() };
        let askers = {
            let mut state = family.state();
            state.waits.retain(|wait| wait.number != number);
            state.inquiry.end(number)
        };
        if askers.is_empty() {
            return Vec::new();
        }
        family
            .meshes()
            .into_iter()
            .filter(|(number, _)| askers.contains(number))
            .map(|(_, mesh)| mesh)
            .collect()
    }

    /// What the call ends in: where calls were crossed, the other meshes of the circle end too, so that all on it hear of it.
    ///
    /// # Errors
    /// That of `result`, with the words of this call.
    pub(super) fn end<T>(mut self, result: Result<T>) -> Result<T> {
        let Err(Error::Disagreed { field, theirs, index, .. }) = &result else { return result };
        if field != CROSSED {
            return result;
        }
        let inner = &*self.mesh.inner;
        let call = self.words(inner.communicator.entered());
        let begun = self.begun.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mine = if begun.words.is_empty() { call } else { begun.words.clone() };
        inner.communicator.cross(theirs);
        for mesh in Self::forget(&inner.family, begun) {
            mesh.communicator.cross(&mine);
        }
        let (mine, theirs) = (format!("this member waits in {mine}"), format!("waits in {theirs}"));
        Err(Error::Disagreed { field: field.clone(), mine, theirs, index: *index })
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        // Without a lock: nobody else has it any more.
        let begun = self.begun.get_mut().unwrap_or_else(PoisonError::into_inner);
        Self::forget(&self.mesh.inner.family, begun);
    }
}
