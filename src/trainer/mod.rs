//! Data-parallel training: parameters shared, gradients per member, one fused step for reduction and update.
//!
//! On a host one copy of the parameters serves all processes. Each member writes gradients into its own part of an arena
//! that the others read directly, and owns a shard of all parameters: it alone reduces and updates it, and it alone
//! keeps the optimizer's state for it. Between hosts each has such a copy, and `host` says what crosses. On a mesh of GPUs each
//! member has a copy on its own, see `vram`.

mod agreement;
mod bucket;
mod deferred;
#[cfg(test)]
mod fake;
mod host;
mod optimizer;
mod slab;
mod step;
mod storage;
#[cfg(test)]
mod tests;
mod vram;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::communicator::{Communicator, SharedArena};
use crate::error::{Error, Result};
use crate::mesh::{Admission, DeviceBytes, Mesh};
use crate::sys::kernel::Table;
use crate::sys::{Deadline, Element, Span, SpanMut};
use crate::vocabulary::{Dtype, Verb};

use agreement::{Contribution, Entry, Members, pack, unpack};
use bucket::{ALIGNMENT, Layout, Region, Shape};
use host::{Crossing, Hosts};
use optimizer::Buffer;
use vram::Vram;

pub use deferred::DeferredTrainer;
pub use optimizer::Optimizer;
pub use step::StepReport;

/// One parameter as a member declares it.
#[derive(Clone, Debug)]
pub struct Parameter<'a> {
    /// Its name, unique in the trainer.
    pub name: String,
    /// Its extents; empty for a scalar, any of them may be 0.
    pub shape: Vec<usize>,
    /// Its element type, F32 or F64.
    pub dtype: Dtype,
    /// Its initial values in row-major order; `None` for zeros. Those of index 0 count.
    pub values: Option<Span<'a>>,
}

/// A parameter for reading; it keeps the memory alive.
#[derive(Clone)]
pub struct View(ViewMut);

impl View {
    /// The elements in row-major order. They change in `step`, `load` and index 0's `edit` only.
    ///
    /// # Errors
    /// `Closed` if the memory is gone; `Unsupported` for one on a GPU.
    pub fn span(&self) -> Result<Span<'_>> {
        match &self.0.memory {
            Memory::Ram { arena, seat, bytes } => part(&**arena, *seat)?.part(bytes.clone()),
            Memory::Vram(_) => Err(vram::unreadable()),
        }
    }

    /// Where it is on a GPU; `None` in host memory.
    #[must_use]
    pub fn device_bytes(&self) -> Option<&DeviceBytes> {
        self.0.device_bytes()
    }

    /// As [`ViewMut::place`], for reading.
    ///
    /// # Errors
    /// `Closed` if the memory is gone.
    pub fn place(&self) -> Result<(*const u8, usize)> {
        self.0.place().map(|(pointer, byte_count)| (pointer.cast_const(), byte_count))
    }

    /// The extents.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.0.dtype
    }

    /// A copy of the elements.
    ///
    /// # Errors
    /// `Invalid` for another element type.
    pub fn to_vec<T: Element + Default>(&self) -> Result<Vec<T>> {
        check_dtype::<T>(self.dtype())?;
        if let Some(bytes) = self.device_bytes() {
            let mut values = vec![T::default(); bytes.byte_count() / size_of::<T>()];
            vram::read(bytes, SpanMut::of(&mut values))?;
            return Ok(values);
        }
        let span = self.span()?;
        let mut values = vec![T::default(); span.byte_count() / size_of::<T>()];
        SpanMut::of(&mut values).copy_from(span)?;
        Ok(values)
    }
}

/// A gradient, or a parameter in `edit`, for writing; it keeps the memory alive.
#[derive(Clone)]
pub struct ViewMut {
    memory: Memory,
    shape: Vec<usize>,
    dtype: Dtype,
}

/// Where an array of a trainer lies.
#[derive(Clone)]
enum Memory {
    Ram { arena: Arc<dyn SharedArena>, seat: usize, bytes: std::ops::Range<usize> },
    Vram(DeviceBytes),
}

impl ViewMut {
    /// The elements in row-major order.
    ///
    /// # Errors
    /// `Closed` if the memory is gone; `Unsupported` for one on a GPU.
    pub fn with_span<R>(&self, write: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        match &self.memory {
            Memory::Ram { arena, seat, bytes } => Ok(write(part_mut(&**arena, *seat)?.part(bytes.clone())?)),
            Memory::Vram(_) => Err(vram::unreadable()),
        }
    }

    /// Where it is on a GPU; `None` in host memory.
    #[must_use]
    pub fn device_bytes(&self) -> Option<&DeviceBytes> {
        match &self.memory {
            Memory::Ram { .. } => None,
            Memory::Vram(bytes) => Some(bytes),
        }
    }

    /// The address of the first element and the bytes from there, valid while this view lives; on a GPU in the GPU's terms.
    ///
    /// # Errors
    /// `Closed` if the memory is gone.
    pub fn place(&self) -> Result<(*mut u8, usize)> {
        match &self.memory {
            Memory::Ram { .. } => self.with_span(|span| (span.pointer(), span.byte_count())),
            Memory::Vram(bytes) => {
                let address = usize::try_from(bytes.address()?).unwrap_or(0);
                Ok((std::ptr::without_provenance_mut(address), bytes.byte_count()))
            }
        }
    }

    /// The address of the first element, valid while this view lives; on a GPU in the GPU's terms.
    ///
    /// # Errors
    /// `Closed` if the memory is gone.
    pub fn pointer(&self) -> Result<*mut u8> {
        self.place().map(|(pointer, _)| pointer)
    }

    /// The extents.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Writes all elements.
    ///
    /// # Errors
    /// `Invalid` for another element type or count.
    pub fn write<T: Element>(&self, values: &[T]) -> Result<()> {
        check_dtype::<T>(self.dtype)?;
        self.fill(Span::of(values))
    }

    /// Writes all bytes.
    fn fill(&self, values: Span<'_>) -> Result<()> {
        match &self.memory {
            Memory::Ram { .. } => self.with_span(|mut span| span.copy_from(values))?,
            Memory::Vram(bytes) => vram::write(bytes, values),
        }
    }

    /// The same elements for reading.
    #[must_use]
    pub fn as_view(&self) -> View {
        View(self.clone())
    }
}

fn check_dtype<T: Element>(dtype: Dtype) -> Result<()> {
    if T::DTYPE == dtype {
        return Ok(());
    }
    Err(Error::invalid("element type", T::DTYPE, "argument", format!("the array is of {dtype}")))
}

fn no_part(seat: usize) -> Error {
    Error::Closed { what: "trainer".to_owned(), why: format!("its memory has no part of index {seat}") }
}

fn part(arena: &dyn SharedArena, seat: usize) -> Result<Span<'_>> {
    arena.part(seat).ok_or_else(|| no_part(seat))
}

fn part_mut(arena: &dyn SharedArena, seat: usize) -> Result<SpanMut<'_>> {
    arena.part_mut(seat).ok_or_else(|| no_part(seat))
}

/// What a member owns of one region: the bytes, the optimizer's state for them, and their reduced gradients.
struct Shard {
    region: Region,
    bytes: std::ops::Range<usize>,
    states: Vec<Buffer>,
    /// Only with clipping, where the norm must be known before the first update.
    reduced: Option<Buffer>,
}

/// What changes from call to call.
struct Progress {
    updates: u64,
    shards: Vec<Shard>,
    /// What goes to other hosts and comes from them.
    crossing: Crossing,
    /// While `edit` is open: where this member's writes go.
    edited: Option<Edited>,
}

/// Where writes of an `edit` go.
enum Edited {
    Ram(Arc<dyn SharedArena>),
    /// To this member's own copy, which the one of index 0 replaces.
    Vram,
}

/// One call's right to the trainer, to the executor and to the turn of its mesh.
struct Held<'a> {
    progress: MutexGuard<'a, Progress>,
    admission: Option<Admission<'a>>,
}

impl Held<'_> {
    /// The kernels of the executor that is held; on a bare group the best that this machine runs.
    fn kernels(&self) -> Table {
        self.admission.as_ref().map_or_else(Table::best, |admission| admission.hold().kernels())
    }
}

impl Deref for Held<'_> {
    type Target = Progress;
    fn deref(&self) -> &Progress {
        &self.progress
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }
}

/// Trains the parameters it was given, together with the other members of its mesh.
///
/// Calls that change or store parameters are collective: all members make them in the same order. A call that ended in
/// `Lost`, `TimedOut` or `Interrupted` closes the trainer on this member, with that error as the reason. Another one, on the mesh
/// that [`Mesh::shrink`] gives, loads the last checkpoint.
///
/// A handle: clones are the same trainer.
#[derive(Clone)]
pub struct Trainer {
    /// Whose executor the calls hold; `None` on a bare group.
    mesh: Option<Mesh>,
    /// Whether the calls of this handle come with their turn, as inside of a deferred call.
    is_admitted: bool,
    core: Arc<Core>,
}

struct Core {
    members: Members,
    layout: Layout,
    names: Vec<String>,
    optimizer: Optimizer,
    clip_norm: Option<f64>,
    ground: Ground,
    progress: Mutex<Progress>,
    closed: Mutex<Option<String>>,
}

/// The memory that is trained in.
enum Ground {
    Ram(Ram),
    Vram(Box<Vram>),
}

/// The memory of hosts.
struct Ram {
    hosts: Hosts,
    parameters: Arc<dyn SharedArena>,
    gradients: Arc<dyn SharedArena>,
}

impl Ram {
    /// The parameters of this member's host, for writing.
    fn parameters(&self) -> Result<SpanMut<'_>> {
        part_mut(&*self.parameters, self.hosts.first())
    }
}

impl Core {
    /// The memory of the hosts.
    ///
    /// # Errors
    /// `Unsupported` for a trainer on GPUs.
    fn ram(&self) -> Result<&Ram> {
        match &self.ground {
            Ground::Ram(ram) => Ok(ram),
            Ground::Vram(_) => Err(vram::unreadable()),
        }
    }

    /// The memory on this member's GPU; `None` in host memory.
    fn vram(&self) -> Option<&Vram> {
        match &self.ground {
            Ground::Ram(_) => None,
            Ground::Vram(vram) => Some(vram),
        }
    }
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Trainer({} parameters, {:?})", self.core.names.len(), self.core.optimizer)
    }
}

impl Trainer {
    /// Makes a trainer on a mesh; collective.
    ///
    /// Names, shapes, element types, the optimizer and `clip_norm` must be the same on all members; the initial values of
    /// index 0 count. The norm of all gradients together is clipped to `clip_norm` as `torch.nn.utils.clip_grad_norm_`
    /// does it (Pascanu, Mikolov and Bengio, ICML 2013).
    ///
    /// # Errors
    /// `Invalid` and `Unsupported` on all members if one has such an argument; `Disagreed` naming the parameter and both
    /// members; `Exhausted`; else as [`Communicator::run`].
    pub fn open(
        mesh: &Mesh,
        parameters: &[Parameter<'_>],
        optimizer: Optimizer,
        clip_norm: Option<f64>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        mesh.check_open()?;
        let group = Arc::clone(mesh.communicator());
        let held = mesh.admit("trainer.open", deadline);
        let held = held.inspect_err(|error| group.refuse(Verb::AllGather, error))?;
        let on_gpus = (!mesh.executor().gpus().is_empty()).then_some(mesh);
        let open = || Self::on_ground(group, on_gpus, parameters, optimizer, clip_norm, deadline);
        let mut trainer = mesh.executor().near_memory(open)?;
        trainer.mesh = Some(mesh.clone());
        drop(held);
        Ok(trainer)
    }

    /// As [`Trainer::open`], on a bare group, without an executor.
    ///
    /// # Errors
    /// As [`Trainer::open`].
    pub fn on_group(
        group: Arc<dyn Communicator>,
        parameters: &[Parameter<'_>],
        optimizer: Optimizer,
        clip_norm: Option<f64>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        Self::on_ground(group, None, parameters, optimizer, clip_norm, deadline)
    }

    /// Opens it in host memory, or on the GPUs of the executor of a mesh.
    fn on_ground(
        group: Arc<dyn Communicator>,
        on_gpus: Option<&Mesh>,
        parameters: &[Parameter<'_>],
        optimizer: Optimizer,
        clip_norm: Option<f64>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let members = Members::new(group);
        let shapes = shapes_of(parameters);
        let own = describe(&shapes, &optimizer, clip_norm, on_gpus.is_some());
        let checked = check(parameters, &shapes, &optimizer, clip_norm);
        let (layout, all) = members.outcome(checked, |_| own.clone(), deadline)?;
        compare(&shapes, &own, &all, members.seat())?;
        let (ground, shards, crossing) = match on_gpus {
            None => Self::in_ram(&members, &layout, &optimizer, clip_norm.is_some(), deadline)?,
            Some(mesh) => {
                let vram = Vram::open(mesh, &members, &layout, &optimizer, deadline)?;
                (Ground::Vram(Box::new(vram)), Vec::new(), Crossing::default())
            }
        };
        let core = Core {
            names: parameters.iter().map(|parameter| parameter.name.clone()).collect(),
            layout,
            optimizer,
            clip_norm,
            ground,
            progress: Mutex::new(Progress { updates: 0, shards, crossing, edited: None }),
            closed: Mutex::new(None),
            members,
        };
        let trainer = Self { mesh: None, is_admitted: false, core: Arc::new(core) };
        if trainer.core.members.seat() == 0 {
            for parameter in parameters {
                if let Some(values) = parameter.values {
                    trainer.parameter(&parameter.name)?.0.fill(values)?;
                }
            }
        }
        trainer.core.members.fence(deadline)?;
        trainer.spread_parameters(deadline)?;
        Ok(trainer)
    }

    /// Takes the memory of a trainer on hosts.
    fn in_ram(
        members: &Members,
        layout: &Layout,
        optimizer: &Optimizer,
        clipped: bool,
        deadline: &Deadline<'_>,
    ) -> Result<(Ground, Vec<Shard>, Crossing)> {
        let (seat, count) = (members.seat(), members.count());
        // An arena of nothing would have no address: parameters without elements still have one.
        let byte_count = layout.byte_count.max(ALIGNMENT);
        let gradients = members.arena(byte_count, deadline)?;
        let visible = (0..count).filter(|seat| gradients.part(*seat).is_some()).collect::<Vec<_>>();
        let hosts = Hosts::agree(members, &visible, deadline)?;
        // One copy on each host.
        let parameters = members.arena(if seat == hosts.first() { byte_count } else { 0 }, deadline)?;
        let shards = open_shards(layout, optimizer, clipped, seat, count);
        let opened = shards.and_then(|shards| Ok((shards, Crossing::open(&hosts, layout, seat, count)?)));
        let ((shards, crossing), _) = members.outcome(opened, |_| Vec::new(), deadline)?;
        if !hosts.is_one() {
            // A group that is too large for this call says so now, and not in its first step.
            let nothing = vec![0; count];
            members.pass(Span::empty(), &nothing, SpanMut::empty(), &nothing, deadline)?;
        }
        Ok((Ground::Ram(Ram { hosts, parameters, gradients }), shards, crossing))
    }

    /// The names of the parameters, in the order in which they were given.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.core.names
    }

    /// On how many GPUs of this member it lies, each with a copy of the parameters and gradients of its own; 0 in host memory.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.core.vram().map_or(0, Vram::gpu_count)
    }

    /// A parameter; on this member's first GPU where it lies on GPUs.
    ///
    /// # Errors
    /// `Invalid` for a name that is none.
    pub fn parameter(&self, name: &str) -> Result<View> {
        self.parameter_on(name, 0)
    }

    /// A parameter on the GPU at a position of the executor's; in host memory there is the position 0 alone.
    ///
    /// # Errors
    /// `Invalid` for a name that is none, and if there is no such position.
    pub fn parameter_on(&self, name: &str, device: usize) -> Result<View> {
        Ok(View(match &self.core.ground {
            Ground::Ram(ram) => {
                check_host_device(device)?;
                self.place(name, &ram.parameters, ram.hosts.first())?
            }
            Ground::Vram(vram) => self.on_gpu(name, |bytes| vram.parameter(device, bytes))?,
        }))
    }

    /// This member's gradient of a parameter: written by the user before each `step`, and left as it is by it.
    ///
    /// # Errors
    /// `Invalid` for a name that is none, and where this member has several GPUs, each with gradients of its own: see
    /// [`Trainer::gradient_on`].
    pub fn gradient(&self, name: &str) -> Result<ViewMut> {
        let (index, count) = (self.core.members.seat(), self.device_count());
        if count > 1 {
            let reason = format!(
                "index {index} trains on {count} GPUs, each with gradients of its own: take that of each position of the executor's"
            );
            return Err(Error::invalid("gradient", name, "argument", reason));
        }
        self.gradient_on(name, 0)
    }

    /// The gradient on the GPU at a position of the executor's: what counts for this member is the mean of all of them. In host
    /// memory there is the position 0 alone.
    ///
    /// # Errors
    /// `Invalid` for a name that is none, and if there is no such position.
    pub fn gradient_on(&self, name: &str, device: usize) -> Result<ViewMut> {
        match &self.core.ground {
            Ground::Ram(ram) => {
                check_host_device(device)?;
                self.place(name, &ram.gradients, self.core.members.seat())
            }
            Ground::Vram(vram) => self.on_gpu(name, |bytes| vram.gradient(device, bytes)),
        }
    }

    /// How many updates the parameters have seen; a `load` brings the number back.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.core.progress.lock().unwrap_or_else(PoisonError::into_inner).updates
    }

    /// Lets index 0 write parameters; collective. What others write does not count.
    ///
    /// # Errors
    /// What `write` returns, after all members have left the call; `Contended`, `Closed`, and as [`Communicator::run`].
    pub fn edit(&self, deadline: &Deadline<'_>, write: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        self.begin_edit(deadline)?;
        let written = write(self);
        self.end_edit(deadline)?;
        written
    }

    /// Waits until all members are here; from then to [`Trainer::end_edit`], [`Trainer::editable`] gives views.
    ///
    /// # Errors
    /// As [`Trainer::edit`].
    pub fn begin_edit(&self, deadline: &Deadline<'_>) -> Result<()> {
        let mut progress = self.hold(Entry::Edit, deadline)?;
        self.enter(Entry::Edit, progress.updates, None, deadline)?;
        let Ground::Ram(ram) = &self.core.ground else {
            progress.edited = Some(Edited::Vram);
            return Ok(());
        };
        let own_part = self.core.members.seat() != 0;
        let edited = (|| {
            let parameters = part(&*ram.parameters, ram.hosts.first())?;
            let byte_count = if own_part { parameters.byte_count() } else { 0 };
            let copy = self.core.members.arena(byte_count, deadline)?;
            if own_part {
                part_mut(&*copy, self.core.members.seat())?.copy_from(parameters)?;
            }
            // Index 0 may write from here on: the others have copied.
            self.core.members.fence(deadline)?;
            Ok(if own_part { copy } else { Arc::clone(&ram.parameters) })
        })();
        progress.edited = Some(Edited::Ram(self.broken(edited)?));
        Ok(())
    }

    /// A parameter for writing, between `begin_edit` and `end_edit`.
    ///
    /// # Errors
    /// `Invalid` outside of them, and for a name that is none.
    pub fn editable(&self, name: &str) -> Result<ViewMut> {
        let progress = self.core.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match &progress.edited {
            Some(Edited::Ram(arena)) => self.place(name, arena, self.core.members.seat()),
            Some(Edited::Vram) => Ok(self.parameter(name)?.0),
            None => Err(Error::invalid("parameter", name, "argument", "is written inside of edit only")),
        }
    }

    /// Waits until all members are here; what index 0 wrote holds for all.
    ///
    /// # Errors
    /// `Invalid` without a `begin_edit`; else as [`Trainer::edit`].
    pub fn end_edit(&self, deadline: &Deadline<'_>) -> Result<()> {
        let mut progress = self.hold(Entry::EndEdit, deadline)?;
        self.enter(Entry::EndEdit, progress.updates, None, deadline)?;
        progress.edited = None;
        self.broken(self.spread_parameters(deadline))
    }

    /// A parameter with its place in the layout.
    fn find(&self, name: &str) -> Result<&bucket::Entry> {
        self.core.layout.find(name).ok_or_else(|| {
            let known = self.core.names.iter().take(8).map(String::as_str).collect::<Vec<_>>().join(", ");
            Error::invalid("parameter", name, "argument", format!("the trainer has {known}"))
        })
    }

    /// Where a parameter lies in an arena.
    fn place(&self, name: &str, arena: &Arc<dyn SharedArena>, seat: usize) -> Result<ViewMut> {
        let entry = self.find(name)?;
        let memory = Memory::Ram { arena: Arc::clone(arena), seat, bytes: entry.bytes() };
        Ok(ViewMut { memory, shape: entry.shape.extents.clone(), dtype: entry.shape.dtype })
    }

    /// Where a parameter, or its gradient, lies on a GPU of this member.
    fn on_gpu(
        &self,
        name: &str,
        lies: impl FnOnce(&std::ops::Range<usize>) -> Result<DeviceBytes>,
    ) -> Result<ViewMut> {
        let entry = self.find(name)?;
        let memory = Memory::Vram(lies(&entry.bytes())?);
        Ok(ViewMut { memory, shape: entry.shape.extents.clone(), dtype: entry.shape.dtype })
    }

    /// Takes the trainer for one call.
    fn hold(&self, entry: Entry, deadline: &Deadline<'_>) -> Result<Held<'_>> {
        if let Some(mesh) = &self.mesh {
            mesh.check_open()?;
        }
        self.check_open()?;
        let admission = match &self.mesh {
            Some(mesh) if !self.is_admitted => Some(mesh.admit(entry.word(), deadline)),
            _ => None,
        };
        let admission = admission.transpose().inspect_err(|error| self.core.members.refuse(error))?;
        // Closed by the call that this one waited for.
        self.check_open()?;
        let progress = match self.core.progress.try_lock() {
            Ok(progress) => progress,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let (what, holder) = ("trainer".to_owned(), "another call of it".to_owned());
                let error = Error::Contended { what, holder, waited: Duration::ZERO };
                self.core.members.refuse(&error);
                return Err(error);
            }
        };
        if progress.edited.is_some() != (entry == Entry::EndEdit) {
            let reason =
                if entry == Entry::EndEdit { "no edit is open" } else { "an edit is open; end it first" };
            let error = Error::invalid("call", entry.word(), "caller", reason);
            self.core.members.refuse(&error);
            return Err(error);
        }
        Ok(Held { progress, admission })
    }

    fn check_open(&self) -> Result<()> {
        match &*self.core.closed.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(Error::Closed { what: "trainer".to_owned(), why: why.clone() }),
        }
    }

    /// The fence at the beginning of every collective call.
    fn enter(
        &self,
        entry: Entry,
        argument: u64,
        own: Option<Contribution>,
        deadline: &Deadline<'_>,
    ) -> Result<Vec<Contribution>> {
        let own = own.unwrap_or(Contribution { weight: 0.0, finite: true });
        self.ended(self.core.members.enter(entry, argument, own, deadline))
    }

    /// Closes the trainer if a call ended in a way that ends its group.
    fn ended<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(
            error @ (Error::Lost { .. }
            | Error::TimedOut { .. }
            | Error::Interrupted { .. }
            | Error::Closed { .. }),
        ) = &result
        {
            self.close_because(error);
        }
        result
    }

    /// Closes the trainer if this part of a call failed here in any way: the others cannot know, so the group ends.
    fn broken<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.close_because(error);
            self.core.members.leave(error);
        }
        result
    }

    fn close_because(&self, cause: &Error) {
        let mut closed = self.core.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.get_or_insert_with(|| cause.chain());
    }
}

fn shapes_of(parameters: &[Parameter<'_>]) -> Vec<Shape> {
    let shape = |parameter: &Parameter<'_>| Shape {
        name: parameter.name.clone(),
        extents: parameter.shape.clone(),
        dtype: parameter.dtype,
    };
    parameters.iter().map(shape).collect()
}

/// Everything about the arguments that one member can find wrong alone.
fn check(
    parameters: &[Parameter<'_>],
    shapes: &[Shape],
    optimizer: &Optimizer,
    clip_norm: Option<f64>,
) -> Result<Layout> {
    optimizer.check()?;
    if let Some(norm) = clip_norm.filter(|norm| !norm.is_finite() || *norm <= 0.0) {
        return Err(Error::invalid("clip_norm", norm, "argument", "must be finite and above 0"));
    }
    let layout = Layout::derive(shapes)?;
    for parameter in parameters {
        let wanted = layout.find(&parameter.name).map_or(0, |entry| entry.bytes().len());
        if let Some(values) = parameter.values.filter(|values| values.byte_count() != wanted) {
            let argument = format!("values of parameter `{}`", parameter.name);
            let reason = format!("must be the {wanted} bytes of {} {:?}", parameter.dtype, parameter.shape);
            let value = format!("{} bytes", values.byte_count());
            return Err(Error::invalid(argument, value, "argument", reason));
        }
    }
    Ok(layout)
}

/// Refuses a position of a GPU for a trainer in host memory.
fn check_host_device(device: usize) -> Result<()> {
    if device == 0 {
        return Ok(());
    }
    let reason = "the trainer is in host memory, where there is the position 0 alone";
    Err(Error::invalid("device", device, "argument", reason))
}

/// What must be the same on all members besides the parameters.
const COMMON: [&str; 3] = ["the optimizer", "clip_norm", "the memory that is trained in"];

/// What must be the same on all members, as a message.
fn describe(shapes: &[Shape], optimizer: &Optimizer, clip_norm: Option<f64>, is_on_gpus: bool) -> Vec<u8> {
    let mut sorted = shapes.iter().collect::<Vec<_>>();
    sorted.sort_by(|one, other| one.name.cmp(&other.name));
    let memory = if is_on_gpus {
        "that of GPUs (its executor is of Executor.for_vram)"
    } else {
        "that of hosts (its executor is of Executor.for_ram)"
    };
    let mut fields = vec![format!("{optimizer:?}"), format!("{clip_norm:?}"), memory.to_owned()];
    for shape in sorted {
        let extents = shape.extents.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        fields.extend([shape.name.clone(), shape.dtype.name().to_owned(), extents]);
    }
    pack(fields.iter().map(String::as_bytes))
}

/// The shapes of a message of [`describe`]; `None` if it is none.
fn described(fields: &[&[u8]]) -> Option<Vec<Shape>> {
    let (triples, rest) = fields.get(COMMON.len()..)?.as_chunks::<3>();
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).ok();
    let shape = |[name, dtype, extents]: &[&[u8]; 3]| {
        let extents = text(extents)?;
        let extents = extents.split_ascii_whitespace().map(|word| word.parse().ok());
        let extents = extents.collect::<Option<Vec<usize>>>()?;
        Some(Shape { name: text(name)?, extents, dtype: Dtype::from_name(&text(dtype)?)? })
    };
    if rest.is_empty() { triples.iter().map(shape).collect() } else { None }
}

/// Finds the first member that says something else.
fn compare(shapes: &[Shape], own: &[u8], all: &[Vec<u8>], seat: usize) -> Result<()> {
    let Some(index) = all.iter().position(|theirs| theirs != own) else { return Ok(()) };
    let disagreed = |field: String, mine: String, theirs: String| {
        let mine = format!("{mine} (index {seat})");
        Err(Error::Disagreed { field, mine, theirs, index })
    };
    let (mine, theirs) = (unpack(own).unwrap_or_default(), unpack(&all[index]).unwrap_or_default());
    for (position, field) in COMMON.into_iter().enumerate() {
        if mine.get(position) != theirs.get(position) {
            let word = |fields: &[&[u8]]| {
                fields
                    .get(position)
                    .map_or_else(String::new, |text| String::from_utf8_lossy(text).into_owned())
            };
            return disagreed(field.to_owned(), word(&mine), word(&theirs));
        }
    }
    match described(&theirs).and_then(|theirs| Layout::difference(shapes, &theirs)) {
        Some((name, mine, theirs)) => disagreed(format!("parameter `{name}`"), mine, theirs),
        None => disagreed("parameters".to_owned(), "these".to_owned(), "unreadable".to_owned()),
    }
}

fn open_shards(
    layout: &Layout,
    optimizer: &Optimizer,
    clipped: bool,
    seat: usize,
    count: usize,
) -> Result<Vec<Shard>> {
    let open = |region: &Region| {
        let bytes = region.shard(seat, count);
        let zeros = || Buffer::zeros(region.dtype, bytes.len());
        let states = optimizer.states().iter().map(|_| zeros()).collect::<Result<Vec<_>>>()?;
        let reduced = if clipped { Some(zeros()?) } else { None };
        Ok(Shard { region: region.clone(), bytes, states, reduced })
    };
    layout.regions.iter().map(open).collect()
}
