//! The verbs of a mesh that return before they are done.

use super::order::Lane;
use super::{Arena, Mesh};
use crate::communicator::Call;
use crate::error::{Error, Result};
use crate::executor::Deferred;
use crate::recorder::Site;
use crate::sys::{Deadline, Element, Span, SpanMut};
use crate::vocabulary::{ReduceOp, Verb};

/// A mesh whose verbs return a [`Deferred`]: made by [`Mesh::deferred`].
///
/// A call owns its arrays until it is done, and gives them back. Calls run in the order in which they were submitted, also over
/// several executors; a deadline counts from submission. Errors come when the call is waited for, and drop the arrays.
///
/// ```
/// use uform::{Deadline, Mesh, ReduceOp};
/// use std::time::Duration;
///
/// let mesh = Mesh::bootstrap(None, None)?;
/// let sum = mesh.deferred(None).all_reduce(vec![1.0f32, 2.0], ReduceOp::Sum);
/// assert_eq!(sum.wait(&Deadline::after(Duration::from_secs(60)))?, [1.0, 2.0]);
/// # Ok::<(), uform::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeferredMesh {
    mesh: Mesh,
}

impl Mesh {
    /// The same verbs, each returning a [`Deferred`], on `executor` or on this mesh's own.
    #[must_use]
    pub fn deferred(&self, executor: Option<&crate::executor::Executor>) -> DeferredMesh {
        DeferredMesh { mesh: executor.map_or_else(|| self.clone(), |executor| self.on(executor)) }
    }
}

impl DeferredMesh {
    /// The mesh, with its verbs on the executor that these calls run on.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Submits one call on memory that `owner` keeps alive, and gives the owner back when it is done.
    ///
    /// `make` runs on the executor's thread, when the call's turn has come. The typed verbs and the shims come through here.
    ///
    /// The call's errors are those of [`Mesh::run`]. `Contended` if the executor is held and its line is full: the peers
    /// are told, and a retry may succeed. `TimedOut` also if the deadline passed before its turn came.
    #[track_caller]
    pub fn run<K: Send + 'static>(
        &self,
        verb: Verb,
        owner: K,
        make: impl for<'k> FnOnce(&'k mut K) -> Result<Call<'k>> + Send + 'static,
        deadline: Deadline<'static>,
    ) -> Deferred<K> {
        self.run_in(Lane::Group, verb, owner, make, deadline)
    }

    /// As [`DeferredMesh::run`], for a send to the member `peer` or a receive from it with a tag: `make` gives a call with the
    /// same. Such calls wait for their executor, and for earlier ones with that member and tag.
    #[track_caller]
    pub fn run_paired<K: Send + 'static>(
        &self,
        verb: Verb,
        (peer, tag): (usize, u64),
        owner: K,
        make: impl for<'k> FnOnce(&'k mut K) -> Result<Call<'k>> + Send + 'static,
        deadline: Deadline<'static>,
    ) -> Deferred<K> {
        self.run_in(Lane::Pair(verb, peer, tag), verb, owner, make, deadline)
    }

    #[track_caller]
    fn run_in<K: Send + 'static>(
        &self,
        lane: Lane,
        verb: Verb,
        owner: K,
        make: impl for<'k> FnOnce(&'k mut K) -> Result<Call<'k>> + Send + 'static,
        deadline: Deadline<'static>,
    ) -> Deferred<K> {
        let mut owner = owner;
        let site = Site::caller();
        self.submit_in(lane, verb, deadline, move |mesh, deadline| {
            mesh.refusing(verb, || {
                let mut call = make(&mut owner)?;
                if call.site == Site::default() {
                    call.site = site;
                }
                if call.gpu.is_some() && lane != Lane::Group {
                    let reason =
                        "must be submitted by `run`: on a GPU it has its place among all calls of the mesh";
                    return Err(Error::invalid("call", verb.word(), "argument", reason));
                }
                mesh.check_call(&call)?;
                mesh.carry(call, None, deadline)
            })??;
            Ok(owner)
        })
    }

    /// Submits many calls of one verb that run as one: [`Mesh::run_many`], else as [`DeferredMesh::run`].
    #[track_caller]
    pub fn run_many<K: Send + 'static>(
        &self,
        verb: Verb,
        owner: K,
        make: impl for<'k> FnOnce(&'k mut K) -> Result<Vec<Call<'k>>> + Send + 'static,
        deadline: Deadline<'static>,
    ) -> Deferred<K> {
        let mut owner = owner;
        let site = Site::caller();
        self.submit(verb, deadline, move |mesh, deadline| {
            mesh.refusing(verb, || {
                let calls = make(&mut owner)?;
                mesh.check_many(verb, &calls)?;
                mesh.carry_many((verb, site), calls, None, deadline)
            })??;
            Ok(owner)
        })
    }

    /// As [`Mesh::all_reduce_many`]; gives the arrays back.
    #[track_caller]
    pub fn all_reduce_many<T: Element>(&self, arrays: Vec<Vec<T>>, op: ReduceOp) -> Deferred<Vec<Vec<T>>> {
        self.many(Verb::AllReduce, arrays, op, 0)
    }

    /// As [`Mesh::broadcast_many`]; gives the arrays back.
    #[track_caller]
    pub fn broadcast_many<T: Element>(&self, arrays: Vec<Vec<T>>, root: usize) -> Deferred<Vec<Vec<T>>> {
        self.many(Verb::Broadcast, arrays, ReduceOp::Sum, root)
    }

    /// As [`Mesh::all_reduce`]; gives the array back.
    #[track_caller]
    pub fn all_reduce<T: Element>(&self, array: Vec<T>, op: ReduceOp) -> Deferred<Vec<T>> {
        self.in_place(Verb::AllReduce, array, op, 0)
    }

    /// As [`Mesh::broadcast`]; gives the array back.
    #[track_caller]
    pub fn broadcast<T: Element>(&self, array: Vec<T>, root: usize) -> Deferred<Vec<T>> {
        self.in_place(Verb::Broadcast, array, ReduceOp::Sum, root)
    }

    /// As [`Mesh::all_gather`]; gives `array` and `out` back.
    #[track_caller]
    pub fn all_gather<T: Element>(&self, array: Vec<T>, out: Vec<T>) -> Deferred<(Vec<T>, Vec<T>)> {
        self.with_output(Verb::AllGather, array, out, ReduceOp::Sum, 0)
    }

    /// As [`Mesh::reduce_scatter`]; gives `array` and `out` back.
    #[track_caller]
    pub fn reduce_scatter<T: Element>(
        &self,
        array: Vec<T>,
        out: Vec<T>,
        op: ReduceOp,
    ) -> Deferred<(Vec<T>, Vec<T>)> {
        self.with_output(Verb::ReduceScatter, array, out, op, 0)
    }

    /// As [`Mesh::reduce`]; gives the array back.
    #[track_caller]
    pub fn reduce<T: Element>(&self, array: Vec<T>, root: usize, op: ReduceOp) -> Deferred<Vec<T>> {
        self.in_place(Verb::Reduce, array, op, root)
    }

    /// As [`Mesh::gather`]; gives `array` and `out` back.
    #[track_caller]
    pub fn gather<T: Element>(&self, array: Vec<T>, out: Vec<T>, root: usize) -> Deferred<(Vec<T>, Vec<T>)> {
        self.with_output(Verb::Gather, array, out, ReduceOp::Sum, root)
    }

    /// As [`Mesh::scatter`]; gives `array` and `out` back.
    #[track_caller]
    pub fn scatter<T: Element>(&self, array: Vec<T>, out: Vec<T>, root: usize) -> Deferred<(Vec<T>, Vec<T>)> {
        self.with_output(Verb::Scatter, array, out, ReduceOp::Sum, root)
    }

    /// As [`Mesh::all_to_all`]; gives `array` and `out` back.
    #[track_caller]
    pub fn all_to_all<T: Element>(&self, array: Vec<T>, out: Vec<T>) -> Deferred<(Vec<T>, Vec<T>)> {
        self.with_output(Verb::AllToAll, array, out, ReduceOp::Sum, 0)
    }

    /// As [`Mesh::send`]; gives the array back.
    #[track_caller]
    pub fn send<T: Element>(&self, array: Vec<T>, destination: usize, tag: u64) -> Deferred<Vec<T>> {
        self.run_paired(
            Verb::Send,
            (destination, tag),
            array,
            move |array| {
                let (input, output) = (Some(Span::of(array)), SpanMut::empty());
                let call = Call::of::<T>(Verb::Send, ReduceOp::Sum, destination, input, output);
                Ok(Call { tag, ..call })
            },
            Mesh::patience(),
        )
    }

    /// As [`Mesh::receive`]; gives the array back.
    #[track_caller]
    pub fn receive<T: Element>(&self, array: Vec<T>, source: usize, tag: u64) -> Deferred<Vec<T>> {
        self.run_paired(
            Verb::Receive,
            (source, tag),
            array,
            move |array| {
                let output = SpanMut::of(array);
                let call = Call::of::<T>(Verb::Receive, ReduceOp::Sum, source, None, output);
                Ok(Call { tag, ..call })
            },
            Mesh::patience(),
        )
    }

    /// As [`Mesh::barrier`].
    #[track_caller]
    pub fn barrier(&self, deadline: Deadline<'static>) -> Deferred<()> {
        self.run(
            Verb::Barrier,
            (),
            |()| Ok(Call::of::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, SpanMut::empty())),
            deadline,
        )
    }

    /// As [`Mesh::exchange`].
    #[track_caller]
    pub fn exchange(&self, payload: Vec<u8>, deadline: Deadline<'static>) -> Deferred<Vec<Vec<u8>>> {
        let site = Site::caller();
        self.submit(Verb::Exchange, deadline, move |mesh, deadline| {
            mesh.refusing(Verb::Exchange, || mesh.exchange_here(&payload, site, deadline))
        })
    }

    /// As [`Mesh::arena`].
    #[track_caller]
    pub fn arena(&self, byte_count: usize, deadline: Deadline<'static>) -> Deferred<Arena> {
        let site = Site::caller();
        self.submit(Verb::Arena, deadline, move |mesh, deadline| {
            mesh.refusing(Verb::Arena, || mesh.arena_here(byte_count, site, deadline))
        })
    }

    #[track_caller]
    fn many<T: Element>(
        &self,
        verb: Verb,
        arrays: Vec<Vec<T>>,
        op: ReduceOp,
        root: usize,
    ) -> Deferred<Vec<Vec<T>>> {
        self.run_many(
            verb,
            arrays,
            move |arrays| {
                let outputs = arrays.iter_mut().map(|array| SpanMut::of(&mut array[..]));
                Ok(outputs.map(|output| Call::of::<T>(verb, op, root, None, output)).collect())
            },
            Mesh::patience(),
        )
    }

    #[track_caller]
    fn in_place<T: Element>(&self, verb: Verb, array: Vec<T>, op: ReduceOp, root: usize) -> Deferred<Vec<T>> {
        self.run(
            verb,
            array,
            move |array| Ok(Call::of::<T>(verb, op, root, None, SpanMut::of(array))),
            Mesh::patience(),
        )
    }

    #[track_caller]
    fn with_output<T: Element>(
        &self,
        verb: Verb,
        array: Vec<T>,
        out: Vec<T>,
        op: ReduceOp,
        root: usize,
    ) -> Deferred<(Vec<T>, Vec<T>)> {
        self.run(
            verb,
            (array, out),
            move |(array, out)| Ok(Call::of::<T>(verb, op, root, Some(Span::of(array)), SpanMut::of(out))),
            Mesh::patience(),
        )
    }

    fn submit<T: Send + 'static>(
        &self,
        verb: Verb,
        deadline: Deadline<'static>,
        work: impl FnOnce(&Mesh, &Deadline<'_>) -> Result<T> + Send + 'static,
    ) -> Deferred<T> {
        self.submit_in(Lane::Group, verb, deadline, work)
    }

    fn submit_in<T: Send + 'static>(
        &self,
        lane: Lane,
        verb: Verb,
        deadline: Deadline<'static>,
        work: impl FnOnce(&Mesh, &Deadline<'_>) -> Result<T> + Send + 'static,
    ) -> Deferred<T> {
        let refused = move |mesh: &Mesh, error: &Error| mesh.refuse(verb, error);
        self.mesh.submit_in(verb.word(), lane, deadline, refused, work)
    }
}
