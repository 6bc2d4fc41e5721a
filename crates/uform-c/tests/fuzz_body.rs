//! One run of the C verbs on arguments made of bytes: what the fuzz target and the property test have in common.
//!
//! The bytes choose verbs, handles, numbers and structs of any version. Pointers are what the header allows: null, or
//! memory of the size that goes with them. Every verb must return a status and keep its text, write nothing beside what
//! it was given, and tell a freed or foreign handle.

#![allow(unsafe_code, reason = "C verbs take pointers; every block names its fact")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use uform_c::arena::*;
use uform_c::collective::*;
use uform_c::deferred::*;
use uform_c::device::*;
use uform_c::executor::*;
use uform_c::handle::{Arena, Deferred, Executor, Mesh, Payloads, Trainer};
use uform_c::mesh::*;
use uform_c::payloads::*;
use uform_c::structure::*;
use uform_c::trainer::*;
use uform_c::{uform_last_error, uform_status_name};

/// The success of a verb.
const SUCCESS: c_int = 0;
/// A handle that was freed, or an object that was closed.
const CLOSED: c_int = 4;
/// The bytes of a struct's place, more than any struct of this version.
const PLACE: usize = 512;
/// Elements of the arrays that verbs work on.
const LENGTH: usize = 64;
/// What guards the bytes after a place.
const GUARD: u8 = 0xA5;

/// Numbers drawn from bytes; 0 once they are used up.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    fn is(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A count that is small, or so large that no memory holds it: what lies between would only take memory.
    fn count(&mut self, limit: usize) -> usize {
        match self.below(8) {
            0 => usize::MAX - self.below(64),
            1 => 1 << 63,
            _ => self.below(limit + 1),
        }
    }

    fn number(&mut self) -> c_int {
        match self.below(4) {
            0 => c_int::from_le_bytes(std::array::from_fn(|_| self.byte())),
            _ => c_int::from(self.byte() % 20),
        }
    }

    fn real(&mut self) -> f64 {
        match self.below(8) {
            0 => f64::from_bits(self.word()),
            1 => f64::NAN,
            2 => f64::INFINITY,
            3 => -1.0,
            4 => 0.0,
            5 => 1e-3,
            _ => f64::from(self.byte()) / 16.0,
        }
    }
}

/// A place for one struct or several, with a guard after it.
#[repr(C, align(16))]
struct Place {
    bytes: [u8; PLACE],
    guard: [u8; 16],
}

impl Place {
    /// A struct, with a size that may be one of another version, and bytes of such a version after it.
    fn of<T: Copy>(value: T, bytes: &mut Bytes<'_>) -> Box<Self> {
        let mut place = Box::new(Self { bytes: [0; PLACE], guard: [GUARD; 16] });
        let size = match bytes.below(8) {
            0 => bytes.below(PLACE + 1),
            1 => size_of::<T>() + 8,
            2 => size_of::<T>().saturating_sub(8),
            3 => usize::try_from(bytes.word()).unwrap_or(usize::MAX) | (1 << 40),
            _ => size_of::<T>(),
        };
        let is_later = bytes.below(4) == 0;
        // SAFETY: every struct of the interface is smaller than a place, which is aligned for it, and begins with its size.
        unsafe {
            place.bytes.as_mut_ptr().cast::<T>().write(value);
            place.bytes.as_mut_ptr().cast::<usize>().write(size);
        }
        if is_later {
            place.bytes[size_of::<T>()] = bytes.byte();
        }
        place
    }

    fn pointer<T>(&mut self, bytes: &mut Bytes<'_>) -> *mut T {
        if bytes.below(8) == 0 { ptr::null_mut() } else { self.bytes.as_mut_ptr().cast() }
    }

    fn check(&self) {
        assert_eq!(self.guard, [GUARD; 16], "a verb wrote beside a struct");
    }
}

/// Everything that lives between two verbs.
struct World {
    /// Handles that verbs gave, each with its kind as [`free`] tells them; freed ones stay, to be used again.
    handles: Vec<(usize, usize, bool)>,
    numbers: Box<[f64; LENGTH]>,
    others: Box<[f64; LENGTH]>,
    extents: Box<[usize; 4]>,
    domains: Box<[u32; 4]>,
    told: Box<u64>,
}

/// Frees a handle of the kind at this place, whatever its number.
fn free(kind: usize, number: usize) -> c_int {
    let handle = ptr::without_provenance_mut::<c_void>(number);
    // SAFETY: a verb that frees takes any number in the shape of a handle.
    unsafe {
        match kind {
            0 => uform_executor_free(handle.cast()),
            1 => uform_mesh_free(handle.cast()),
            2 => uform_arena_free(handle.cast()),
            3 => uform_payloads_free(handle.cast()),
            4 => uform_trainer_free(handle.cast()),
            _ => uform_deferred_free(handle.cast()),
        }
    }
}

extern "C" fn interrupt(user: *mut c_void) -> c_int {
    // The low bit of the pointer, which is no address.
    c_int::from(user.addr() & 1 == 1)
}

extern "C" fn progress(_done: u64, _total: u64, _user: *mut c_void) {}

extern "C" fn ended(_user: *mut c_void) {}

/// Runs the verbs that these bytes spell; panics where one breaks a promise.
pub(crate) fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut world = World {
        handles: Vec::new(),
        numbers: Box::new([1.0; LENGTH]),
        others: Box::new([2.0; LENGTH]),
        extents: Box::new([2, 3, 0, 1]),
        domains: Box::new([0, 1, 4095, 0]),
        told: Box::new(0),
    };
    world.begin();
    let mut calls = 0;
    while !bytes.is_empty() && calls < 64 {
        world.step(&mut bytes);
        calls += 1;
    }
    world.end();
}

/// A verb returned this: it is a status, and an error has a text.
fn judge(status: c_int) -> c_int {
    assert!(!uform_status_name(status).is_null(), "{status} is no status");
    // SAFETY: nothing is written to a null pointer.
    let length = unsafe { uform_last_error(ptr::null_mut(), 0) };
    assert!(status == SUCCESS || length > 0, "an error without a text");
    status
}

impl World {
    /// An executor of one thread, and a mesh of one process on it.
    fn begin(&mut self) {
        let host = HostOptions { threads: 1, deferred_limit: 4, ..HostOptions::default() };
        let mut executor = ptr::null_mut::<Executor>();
        let options = MeshOptions { host_domain_count: 1, ..MeshOptions::default() };
        let mut mesh = ptr::null_mut::<Mesh>();
        // SAFETY: structs of this version and places for handles, all alive.
        unsafe {
            assert_eq!(judge(uform_executor_for_ram(&raw const host, &raw mut executor)), SUCCESS);
            assert_eq!(judge(uform_mesh_bootstrap(executor, &raw const options, &raw mut mesh)), SUCCESS);
        }
        self.keep(0, SUCCESS, executor);
        self.keep(1, SUCCESS, mesh);
    }

    /// Frees every handle: those that live succeed or were closed by a verb, those that were freed are told.
    fn end(&mut self) {
        // Deferred calls use the arrays of this world.
        for (number, kind, live) in &self.handles {
            if *kind == 0 && *live {
                // SAFETY: a handle, and no options.
                unsafe { judge(uform_executor_drain(ptr::without_provenance(*number), 1, ptr::null())) };
            }
        }
        for (number, kind, live) in self.handles.drain(..).rev() {
            let status = judge(free(kind, number));
            assert!(live || status == CLOSED, "a handle was freed twice");
            assert_eq!(judge(free(kind, number)), CLOSED);
        }
    }

    /// Keeps a handle that a verb gave; without success there is none.
    fn keep<T>(&mut self, kind: usize, status: c_int, handle: *mut T) {
        if status == SUCCESS && !handle.is_null() {
            self.handles.push((handle.addr(), kind, true));
        } else {
            assert!(handle.is_null(), "a handle came with status {status}");
        }
    }

    /// A handle of this kind most of the time; else null, another's, a freed one, or no handle at all.
    fn handle<T>(&self, kind: usize, bytes: &mut Bytes<'_>) -> *mut T {
        let number = match bytes.below(16) {
            0 => 0,
            1 => usize::try_from(bytes.word()).unwrap_or(8),
            2 if !self.handles.is_empty() => self.handles[bytes.below(self.handles.len())].0,
            _ => {
                let fitting = self.handles.iter().filter(|(_, own, _)| *own == kind).collect::<Vec<_>>();
                if fitting.is_empty() { 0 } else { fitting[bytes.below(fitting.len())].0 }
            }
        };
        ptr::without_provenance_mut(number)
    }

    fn text(bytes: &mut Bytes<'_>) -> Option<Vec<u8>> {
        match bytes.below(8) {
            0 => None,
            1 => Some(b"/dev/null/never\0".to_vec()),
            2 => Some(vec![0xFF, 0xFE, 0]),
            _ => Some(vec![b'a' + bytes.byte() % 4, 0]),
        }
    }

    fn call_options(&self, bytes: &mut Bytes<'_>, deferred: *mut *mut Deferred) -> CallOptions {
        CallOptions {
            timeout_seconds: bytes.real(),
            interrupt: bytes.is().then_some(interrupt),
            interrupt_user: ptr::without_provenance_mut(bytes.below(2)),
            progress: bytes.is().then_some(progress),
            deferred: if bytes.below(4) == 0 { deferred } else { ptr::null_mut() },
            ..CallOptions::default()
        }
    }

    /// Calls one verb.
    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.below(8) {
            0 => self.make(bytes),
            1 | 2 => self.move_arrays(bytes),
            3 => self.train(bytes),
            4 => self.wait(bytes),
            5 => self.look(bytes),
            6 => self.open_trainer(bytes),
            _ => self.free(bytes),
        }
    }

    fn free(&mut self, bytes: &mut Bytes<'_>) {
        // The first two are the executor and the mesh, which other verbs need.
        if self.handles.len() <= 2 && bytes.below(8) != 0 {
            return;
        }
        let position = bytes.below(self.handles.len());
        let (number, kind, live) = self.handles[position];
        if kind == 5 && live {
            // Its call may still write to memory of this world, which lives on; its handle may go.
            self.handles[position].2 = false;
        }
        let status = judge(free(kind, number));
        assert!(live || status == CLOSED, "a handle was freed twice");
        self.handles[position].2 = false;
    }

    /// Executors and meshes from structs of any version.
    fn make(&mut self, bytes: &mut Bytes<'_>) {
        let (mut executor, mut mesh) = (ptr::null_mut::<Executor>(), ptr::null_mut::<Mesh>());
        let domains: *const u32 = if bytes.is() { self.domains.as_ptr() } else { ptr::null() };
        let domain_count = if domains.is_null() { bytes.count(2) } else { bytes.below(5) };
        let threads = [0, 1, 2, 4097, usize::MAX][bytes.below(5)];
        match bytes.below(4) {
            0 => {
                let mut place = Place::of(
                    HostOptions {
                        threads,
                        memory_domains: domains,
                        memory_domain_count: domain_count,
                        deferred_limit: bytes.below(4),
                        cpu_class: bytes.number(),
                        reserved: c_int::from(bytes.below(8) == 0),
                        ..HostOptions::default()
                    },
                    bytes,
                );
                let options = place.pointer(bytes);
                // SAFETY: a struct in a place larger than any, and a place for a handle.
                let status = unsafe {
                    if bytes.is() {
                        uform_executor_for_ram(options, &raw mut executor)
                    } else {
                        uform_executor_on_pool(ptr::null_mut(), options, &raw mut executor)
                    }
                };
                place.check();
                self.keep(0, judge(status), executor);
            }
            1 => {
                let device_count = bytes.below(3);
                let mut place = Place::of(
                    VramOptions {
                        devices: if bytes.is() { self.extents.as_ptr() } else { ptr::null() },
                        device_count,
                        scratch_limit: bytes.word(),
                        memory_domains: domains,
                        memory_domain_count: domain_count,
                        gpu_class: bytes.number(),
                        cpu_class: bytes.number(),
                        ..VramOptions::default()
                    },
                    bytes,
                );
                // SAFETY: as above.
                let status = unsafe { uform_executor_for_vram(place.pointer(bytes), &raw mut executor) };
                place.check();
                self.keep(0, judge(status), executor);
            }
            _ => {
                let (directory, job) = (Some(b"/dev/null/never\0".to_vec()), Self::text(bytes));
                let count = [0, 1, 2, 1 << 40][bytes.below(4)];
                let text =
                    |text: &Option<Vec<u8>>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr().cast());
                let mut place = Place::of(
                    MeshOptions {
                        host_domain_index: bytes.count(3),
                        host_domain_count: count,
                        gpus_per_multimem_domain: bytes.count(3),
                        directory: text(&directory),
                        job: text(&job),
                        // Nobody else comes: a run of several must not wait long.
                        timeout_seconds: if count > 1 { 1e-3 } else { bytes.real() },
                        interrupt: bytes.is().then_some(interrupt),
                        interrupt_user: ptr::without_provenance_mut(bytes.below(2)),
                        ..MeshOptions::default()
                    },
                    bytes,
                );
                let executor = self.handle::<Executor>(0, bytes);
                // SAFETY: as above; any number may stand for an executor.
                let status = unsafe { uform_mesh_bootstrap(executor, place.pointer(bytes), &raw mut mesh) };
                place.check();
                self.keep(1, judge(status), mesh);
            }
        }
    }

    /// Verbs on arrays, exchanges and arenas.
    fn move_arrays(&mut self, bytes: &mut Bytes<'_>) {
        let mut deferred = ptr::null_mut::<Deferred>();
        let mut place = Place::of(self.call_options(bytes, &raw mut deferred), bytes);
        let options = place.pointer(bytes);
        let mesh = self.handle::<Mesh>(1, bytes).cast_const();
        // At most 8 elements of at most 8 bytes, after at most 8 bytes: within the arrays.
        let (from, to) = (bytes.below(9), bytes.below(9));
        let mut array: *const c_void = self.numbers.as_ptr().wrapping_byte_add(from).cast();
        let mut out: *mut c_void = self.others.as_mut_ptr().wrapping_byte_add(to).cast();
        match bytes.below(8) {
            0 => array = ptr::null(),
            1 => out = ptr::null_mut(),
            2 => array = out,
            _ => {}
        }
        let (count, dtype, op, root) = (bytes.count(8), bytes.number(), bytes.number(), bytes.count(2));
        let counts: *const usize = if bytes.below(8) == 0 { self.extents.as_ptr() } else { ptr::null() };
        let received = if bytes.is() { counts } else { ptr::null() };
        // SAFETY: arrays are null or hold as many elements as a legal count has; structs lie in places; handles may be
        // any numbers. What a deferred call uses lives as long as this world.
        let status = unsafe {
            match bytes.below(14) {
                0 | 1 => uform_mesh_all_reduce(mesh, array, out, count, dtype, op, options),
                2 => uform_mesh_broadcast(mesh, out, count, dtype, root, options),
                3 => uform_mesh_all_gather(mesh, array, out, count, counts, dtype, options),
                4 => uform_mesh_reduce_scatter(mesh, array, out, count, counts, dtype, op, options),
                5 => uform_mesh_reduce(mesh, array, out, count, dtype, op, root, options),
                6 => uform_mesh_all_to_all(mesh, array, out, count, counts, received, dtype, options),
                7 => uform_mesh_gather(mesh, array, out, count, counts, dtype, root, options),
                8 => uform_mesh_scatter(mesh, array, out, count, counts, dtype, root, options),
                9 => uform_mesh_send(mesh, array, count, dtype, root, 0, options),
                10 => uform_mesh_receive(mesh, out, count, dtype, root, 0, options),
                11 => uform_mesh_barrier(mesh, options),
                12 => {
                    let mut payloads = ptr::null_mut::<Payloads>();
                    let status = uform_mesh_exchange(mesh, array, count, options, &raw mut payloads);
                    self.settle(judge(status), &mut deferred, 3, &raw mut payloads);
                    status
                }
                _ => {
                    let mut arena = ptr::null_mut::<Arena>();
                    let status = uform_mesh_arena(mesh, count, options, &raw mut arena);
                    self.settle(judge(status), &mut deferred, 2, &raw mut arena);
                    status
                }
            }
        };
        place.check();
        self.keep(5, judge(status), deferred);
    }

    /// Takes what a verb gave; a deferred call is waited for here, since its place is of this function's caller.
    ///
    /// # Safety
    /// `place` is where the verb puts its handle.
    unsafe fn settle<T>(
        &mut self,
        status: c_int,
        deferred: &mut *mut Deferred,
        kind: usize,
        place: *mut *mut T,
    ) {
        let mut status = status;
        if status == SUCCESS && !deferred.is_null() {
            // SAFETY: a handle that was just given, and no options; its place is alive.
            unsafe {
                status = judge(uform_deferred_wait(*deferred, ptr::null()));
                assert_eq!(judge(uform_deferred_free(*deferred)), SUCCESS);
            }
            *deferred = ptr::null_mut();
        }
        // SAFETY: the caller of this function vouches for the place.
        self.keep(kind, status, unsafe { place.read() });
    }

    fn open_trainer(&mut self, bytes: &mut Bytes<'_>) {
        let mut trainer = ptr::null_mut::<Trainer>();
        let mesh = self.handle::<Mesh>(1, bytes).cast_const();
        let names = [Self::text(bytes), Self::text(bytes)];
        let huge = bytes.count(3);
        self.extents[1] = huge;
        let values = |bytes: &mut Bytes<'_>, numbers: &[f64; LENGTH]| {
            // Two times three elements of eight bytes are within the array, whatever the extents: larger ones are refused.
            if bytes.is() { numbers.as_ptr().cast::<c_void>() } else { ptr::null() }
        };
        let parameters = [0, 1].map(|position: usize| Parameter {
            name: names[position].as_ref().map_or(ptr::null(), |name| name.as_ptr().cast()),
            shape: if bytes.is() { self.extents.as_ptr() } else { ptr::null() },
            dimension_count: bytes.below(5),
            dtype: bytes.number(),
            values: values(bytes, &self.numbers),
            ..Parameter::default()
        });
        let mut sgd = Place::of(
            Sgd {
                learning_rate: bytes.real(),
                momentum: bytes.real(),
                weight_decay: bytes.real(),
                nesterov: bytes.number(),
                ..Sgd::default()
            },
            bytes,
        );
        let mut adamw = Place::of(
            Adamw {
                learning_rate: bytes.real(),
                beta1: bytes.real(),
                beta2: bytes.real(),
                epsilon: bytes.real(),
                weight_decay: bytes.real(),
                ..Adamw::default()
            },
            bytes,
        );
        let is_sgd = bytes.is();
        let mut place = Place::of(
            TrainerOptions {
                sgd: if is_sgd { sgd.pointer(bytes) } else { ptr::null() },
                adamw: if is_sgd && bytes.below(8) != 0 { ptr::null() } else { adamw.pointer(bytes) },
                clip_norm: bytes.real(),
                ..TrainerOptions::default()
            },
            bytes,
        );
        let mut deferred = ptr::null_mut::<Deferred>();
        let mut call = Place::of(self.call_options(bytes, &raw mut deferred), bytes);
        let count = bytes.below(3);
        // SAFETY: as many parameters as are told, structs in places, and a place for a handle.
        let status = unsafe {
            uform_trainer_open(
                mesh,
                parameters.as_ptr(),
                count,
                place.pointer(bytes),
                call.pointer(bytes),
                &raw mut trainer,
            )
        };
        for place in [&sgd, &adamw, &place, &call] {
            place.check();
        }
        self.keep(4, judge(status), trainer);
    }

    /// Verbs of trainers, in any order.
    fn train(&mut self, bytes: &mut Bytes<'_>) {
        let trainer = self.handle::<Trainer>(4, bytes).cast_const();
        let mut deferred = ptr::null_mut::<Deferred>();
        let mut place = Place::of(self.call_options(bytes, &raw mut deferred), bytes);
        let options = place.pointer(bytes);
        let name = Self::text(bytes);
        let name: *const c_char = name.as_ref().map_or(ptr::null(), |name| name.as_ptr().cast());
        let directory = c"/dev/null/never".as_ptr();
        let (mut writable, mut readable, mut size) = (ptr::null_mut(), ptr::null(), 0);
        let mut report = Place::of(StepReport::default(), bytes);
        // SAFETY: handles may be any numbers, structs lie in places, and the places of results are alive: what a
        // deferred call gives is taken below.
        let status = unsafe {
            match bytes.below(10) {
                0 | 1 => uform_trainer_step(trainer, bytes.real(), options, report.pointer(bytes)),
                2 => uform_trainer_begin_edit(trainer, options),
                3 => uform_trainer_end_edit(trainer, options),
                4 => uform_trainer_save(trainer, directory, bytes.word(), options),
                5 => uform_trainer_load(trainer, directory, options, &raw mut *self.told),
                6 => uform_trainer_parameter(trainer, name, &raw mut readable, &raw mut size),
                7 => uform_trainer_gradient(trainer, name, &raw mut writable, &raw mut size),
                8 => uform_trainer_editable(trainer, name, &raw mut writable, &raw mut size),
                _ => uform_trainer_updates(trainer, &raw mut *self.told),
            }
        };
        judge(status);
        if !deferred.is_null() {
            // SAFETY: a handle that was just given, and no options.
            unsafe {
                judge(uform_deferred_wait(deferred, ptr::null()));
                assert_eq!(judge(uform_deferred_free(deferred)), SUCCESS);
            }
        }
        if status == SUCCESS && !writable.is_null() {
            // SAFETY: the verb says that so many bytes may be written there.
            unsafe { ptr::write_bytes(writable.cast::<u8>(), bytes.byte(), size) };
        }
        place.check();
        report.check();
    }

    /// Verbs of deferred calls.
    fn wait(&mut self, bytes: &mut Bytes<'_>) {
        let deferred = self.handle::<Deferred>(5, bytes).cast_const();
        let mut unused = ptr::null_mut::<Deferred>();
        let mut place = Place::of(self.call_options(bytes, &raw mut unused), bytes);
        let mut number = 0;
        // SAFETY: handles may be any numbers, the struct lies in a place, and the callback touches nothing.
        judge(unsafe {
            match bytes.below(5) {
                0 => uform_deferred_done(deferred, &raw mut number),
                1 => uform_deferred_descriptor(deferred, &raw mut number),
                2 => uform_deferred_on_done(deferred, bytes.is().then_some(ended), ptr::null_mut()),
                _ => uform_deferred_wait(deferred, place.pointer(bytes)),
            }
        });
        place.check();
        assert!(unused.is_null());
    }

    /// Verbs that only tell something, and those that close.
    fn look(&mut self, bytes: &mut Bytes<'_>) {
        let mesh = self.handle::<Mesh>(1, bytes).cast_const();
        let executor = self.handle::<Executor>(0, bytes).cast_const();
        let arena = self.handle::<Arena>(2, bytes).cast_const();
        let payloads = self.handle::<Payloads>(3, bytes).cast_const();
        let trainer = self.handle::<Trainer>(4, bytes).cast_const();
        let (mut size, mut number, mut pointer, mut readable) = (0_usize, 0, ptr::null_mut(), ptr::null());
        let mut text = [GUARD as c_char; 40];
        let capacity = bytes.below(33);
        let text_pointer = if bytes.below(8) == 0 { ptr::null_mut() } else { text.as_mut_ptr() };
        let mut description = Place::of(MeshDescription::default(), bytes);
        let mut devices = Place::of(GpuDevice::default(), bytes);
        let (mut lent, mut other) = (ptr::null_mut::<Executor>(), ptr::null_mut::<Mesh>());
        let index = bytes.count(3);
        // SAFETY: handles may be any numbers; places and texts are as large as is told.
        let status = unsafe {
            match bytes.below(20) {
                0 => uform_mesh_describe(mesh, description.pointer(bytes)),
                1 => uform_mesh_topology(mesh, text_pointer, capacity, &raw mut size),
                2 => uform_mesh_topology_json(mesh, text_pointer, capacity, &raw mut size),
                3 => uform_mesh_index(mesh, &raw mut size),
                4 => uform_mesh_count(mesh, ptr::null_mut()),
                5 => uform_mesh_is_closed(mesh, &raw mut number),
                6 => uform_mesh_executor(mesh, &raw mut lent),
                7 => uform_mesh_on(mesh, executor, &raw mut other),
                8 => uform_mesh_split(mesh, &raw const *self.told, 0, ptr::null(), &raw mut other),
                9 => uform_mesh_shrink(mesh, ptr::null(), &raw mut other),
                10 => uform_executor_threads(executor, &raw mut size),
                11 => uform_executor_mood(executor, &raw mut number),
                12 => uform_executor_drain(executor, bytes.number(), ptr::null()),
                13 => uform_arena_take(arena, index, &raw mut pointer),
                14 => uform_arena_part(arena, index, &raw mut pointer, &raw mut size),
                15 => uform_payloads_get(payloads, index, &raw mut readable, &raw mut size),
                16 => uform_trainer_parameter_name(trainer, index, text_pointer, capacity, &raw mut size),
                17 => uform_capabilities_available(text_pointer, capacity, &raw mut size),
                18 => uform_gpu_devices(devices.pointer(bytes), bytes.below(2), &raw mut size),
                _ if bytes.below(8) != 0 => uform_arena_byte_count(arena, &raw mut size),
                _ if bytes.is() => uform_mesh_close(mesh),
                _ => uform_executor_close(executor, ptr::null()),
            }
        };
        self.keep(0, judge(status), lent);
        self.keep(1, status, other);
        description.check();
        devices.check();
        assert!(text[capacity..].iter().all(|byte| *byte == GUARD as c_char), "a verb wrote beside a text");
    }
}
