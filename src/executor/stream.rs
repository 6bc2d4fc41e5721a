//! GPUs as an executor holds them: one stream each, beside host threads near them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use crate::device::{self, View};
use crate::error::{Error, Missing, Result};
use crate::sys::ccl::Library;
use crate::sys::gpu::{Device, Driver, Stream};
use crate::sys::kernel::gpu::Kernels;
use crate::sys::{CHECK_INTERVAL, Deadline, process};
use crate::topology::{GpuDevice, Placement, Request};
use crate::vocabulary::{CpuClass, GpuClass, GpuVendor};

/// How long opening GPUs may take: a driver that nobody has open starts in seconds.
pub(super) const OPEN_LIMIT: Duration = Duration::from_secs(300);

/// How long the last handle waits for work that is still on a GPU.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// What a caller asks of an executor of GPU streams; the default asks for all GPUs that this process sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VramOptions {
    /// Ordinals in `gpu_devices()`; `None` for all.
    pub devices: Option<Vec<usize>>,
    /// The bytes of scratch memory that calls may take of each GPU; 0 for no limit.
    pub scratch_limit: u64,
    /// How many deferred calls may wait behind the one that holds the executor.
    pub deferred_limit: usize,
    /// The class that GPU kernels dispatch as; `None` takes that of the GPUs.
    pub gpu_class: Option<GpuClass>,
    /// The memory domains of the host's threads; `None` for those that the GPUs are near.
    pub memory_domains: Option<Vec<u32>>,
    /// The class that host kernels dispatch as; `None` takes the best that is compiled and available.
    pub cpu_class: Option<CpuClass>,
}

/// The GPUs of an executor, open; the last handle closes them.
pub(crate) struct Devices {
    seats: Vec<Seat>,
    gpu_class: Option<GpuClass>,
    scratch_limit: u64,
    /// Where arenas lie: the first address, how many bytes, and the position of the GPU.
    places: Mutex<Vec<(u64, usize, usize)>>,
    /// What arenas get memory of, once one was made: NCCL or RCCL where there is one.
    library: OnceLock<Option<Arc<Library>>>,
    pid: u32,
}

/// One of them.
struct Seat {
    gpu: GpuDevice,
    ordinal: usize,
    /// It holds the device open.
    stream: Arc<Stream>,
}

/// What was chosen, before anything is opened.
pub(super) struct Choice {
    vendor: GpuVendor,
    /// Ordinals with what they are, in the caller's order.
    gpus: Vec<(usize, GpuDevice)>,
    gpu_class: Option<GpuClass>,
    scratch_limit: u64,
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.seats.iter().map(|seat| seat.ordinal)).finish()
    }
}

impl Choice {
    /// Which GPUs a caller means.
    ///
    /// # Errors
    /// `Invalid` for an ordinal that is not there or comes twice, for GPUs of two vendors, and for a class that one of them
    /// cannot run; `Unsupported` where this process sees none.
    pub(super) fn of(view: &View, options: &VramOptions) -> Result<Self> {
        let refuse = |reason: String| {
            Err(Error::invalid("devices", format!("{:?}", options.devices), "argument", reason))
        };
        let seen = &view.gpus;
        let ordinals = match &options.devices {
            None if seen.is_empty() => {
                let notes = if view.notes.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", view.notes.join("; "))
                };
                let why = format!(
                    "this process sees no GPU{}{notes}; Executor::for_ram works on host memory",
                    shown(view)
                );
                return Err(Error::unsupported("an executor of GPU streams", why));
            }
            None => (0..seen.len()).collect(),
            Some(devices) => devices.clone(),
        };
        if ordinals.is_empty() {
            return refuse("names none; None takes all that this process sees".to_owned());
        }
        let mut before = BTreeSet::new();
        for ordinal in &ordinals {
            let Some(gpu) = seen.get(*ordinal) else {
                return refuse(format!("there is no GPU {ordinal}: {}", listing(view)));
            };
            if !before.insert(*ordinal) {
                return refuse(format!("{} is listed twice", name_of(*ordinal, gpu)));
            }
        }
        let gpus = ordinals.iter().map(|ordinal| (*ordinal, seen[*ordinal].clone())).collect::<Vec<_>>();
        let (first, gpu) = &gpus[0];
        if let Some((other, another)) = gpus.iter().find(|(_, other)| other.vendor != gpu.vendor) {
            let (one, two) = (name_of(*first, gpu), name_of(*other, another));
            return refuse(format!("{one} and {two} are of two vendors: take those of one"));
        }
        let gpu_class = class_of(&gpus, options.gpu_class)?;
        Ok(Self { vendor: gpu.vendor, gpus, gpu_class, scratch_limit: options.scratch_limit })
    }

    /// Where the host's threads sit: one for each GPU, near them where this process may be there.
    ///
    /// # Errors
    /// As [`Placement::derive`].
    pub(super) fn placement(&self, request: Request, asked: Option<Vec<u32>>) -> Result<Placement> {
        let devices = self.gpus.iter().map(|(ordinal, _)| *ordinal).collect::<Vec<_>>();
        let request = Request { threads: self.gpus.len(), ..request };
        let derive = |memory_domains| {
            let request = Request { memory_domains, ..request.clone() };
            Placement::derive(&request).map(|placement| Placement { devices: devices.clone(), ..placement })
        };
        if asked.is_some() {
            return derive(asked);
        }
        let near = self.gpus.iter().filter_map(|(_, gpu)| gpu.memory_domain).collect::<BTreeSet<_>>();
        // Those near the GPUs may have none of this process's cores.
        if near.is_empty() {
            derive(None)
        } else {
            derive(Some(near.into_iter().collect())).or_else(|_| derive(None))
        }
    }

    /// Opens them on a thread of its own, as nothing limits how long a driver takes to start.
    ///
    /// # Errors
    /// `Unsupported` for a machine without the driver, and one that is too old or does not start; `Invalid` for a GPU that the
    /// driver does not show; `Vendor`, `Exhausted`; `TimedOut`, `Interrupted`: what is opened afterwards is closed again.
    pub(super) fn open(self, deadline: &Deadline<'_>) -> Result<Devices> {
        let phase = format!("opening {}", names(&self.gpus));
        let (give, take) = mpsc::channel();
        let start = std::thread::Builder::new().name("uform-open".to_owned());
        start
            .spawn(move || {
                // Without a receiver nobody waits any more, and what was opened is dropped.
                let _ = give.send(self.open_here());
            })
            .map_err(|error| Error::Exhausted {
                place: format!("this process's thread limit ({error})"),
                wanted_bytes: 8 << 20,
                free_bytes: 0,
                remedy: "raise `ulimit -u` or the pids cgroup".to_owned(),
            })?;
        loop {
            match take.recv_timeout(CHECK_INTERVAL / 2) {
                Ok(opened) => return opened,
                Err(mpsc::RecvTimeoutError::Timeout) => deadline.check(&phase, Vec::<Missing>::new)?,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::unsupported(phase, "the thread that did it ended by a panic"));
                }
            }
        }
    }

    fn open_here(self) -> Result<Devices> {
        let driver = Driver::open(self.vendor).map_err(|error| match error {
            Error::Unsupported { what, why } => {
                Error::Unsupported { what: format!("{what} for {}", names(&self.gpus)), why }
            }
            other => other,
        })?;
        let shown = (0..driver.count()?).map(|number| driver.identity(number)).collect::<Result<Vec<_>>>()?;
        let open = |(ordinal, gpu): (usize, GpuDevice)| {
            let name = name_of(ordinal, &gpu);
            let number = shown.iter().position(|identity| is_same(&gpu, identity)).ok_or_else(|| {
                let reason = format!(
                    "{name} is on this machine, but the driver shows {} and not this one: look at the visibility variables and \
                     the container's devices",
                    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
                );
                Error::invalid("devices", ordinal, "argument", reason)
            })?;
            let device = Device::open(driver, number, &name)?;
            Ok(Seat { stream: Arc::new(Stream::open(&device)?), gpu, ordinal })
        };
        let seats = self.gpus.into_iter().map(open).collect::<Result<_>>()?;
        let (gpu_class, scratch_limit, pid) = (self.gpu_class, self.scratch_limit, process::pid());
        let library = OnceLock::new();
        Ok(Devices { seats, gpu_class, scratch_limit, places: Mutex::default(), library, pid })
    }
}

impl Devices {
    /// What they are, in the executor's order.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = &GpuDevice> {
        self.seats.iter().map(|seat| &seat.gpu)
    }

    /// The stream of each, in the executor's order.
    pub(crate) fn streams(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.seats.iter().map(|seat| &seat.stream)
    }

    /// The GPU whose memory is at an address: an arena's, or one that their driver tells.
    pub(crate) fn gpu_at(&self, address: u64) -> Option<(GpuVendor, usize)> {
        let is_there = |(start, byte_count, _): &&(u64, usize, usize)| {
            address.checked_sub(*start).is_some_and(|offset| offset < *byte_count as u64)
        };
        let place = self.places().iter().find(is_there).copied();
        if let Some(seat) = place.and_then(|(.., position)| self.seats.get(position)) {
            return Some((seat.stream.device().vendor(), seat.stream.device().number()));
        }
        let device = self.streams().next()?.device();
        Some((device.vendor(), device.driver().number_at(address)?))
    }

    /// The library that arenas get memory of; `None` where there is none that can be used.
    pub(super) fn collective_library(&self) -> Option<&Arc<Library>> {
        let open = || {
            let vendor = self.seats.first()?.gpu.vendor;
            device::collective_library(vendor).ok().map(Arc::new)
        };
        self.library.get_or_init(open).as_ref()
    }

    /// Where arenas lie.
    pub(super) fn places(&self) -> MutexGuard<'_, Vec<(u64, usize, usize)>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The class that kernels dispatch as; `None` for a mixture, and for GPUs of no known class.
    pub(crate) const fn gpu_class(&self) -> Option<GpuClass> {
        self.gpu_class
    }

    /// The bytes of scratch memory that calls may take of each, 0 for no limit.
    pub(crate) const fn scratch_limit(&self) -> u64 {
        self.scratch_limit
    }

    /// The kernels of a trainer for one of them.
    ///
    /// # Errors
    /// `Invalid` if there is no such position; as [`Kernels::open`].
    pub(crate) fn kernels(&self, position: usize) -> Result<Kernels> {
        let seat = self.seats.get(position).ok_or_else(|| {
            Error::invalid("device", position, "executor", format!("there are {} GPUs", self.seats.len()))
        })?;
        // HIP's compiler takes the GPU that is current where this does not know its name.
        let architecture = match seat.gpu.gpu_class {
            Some(GpuClass::AmdCdna3) => Some("gfx942"),
            Some(GpuClass::AmdCdna4) => Some("gfx950"),
            Some(GpuClass::AmdCdna5) => Some("gfx1250"),
            _ => None,
        };
        Kernels::open(&seat.stream, architecture, &device::package_places())
    }

    /// Waits until everything that was put on their streams has ended.
    ///
    /// # Errors
    /// `Vendor` naming the GPU whose work has failed; `TimedOut` naming the GPU; `Interrupted`.
    pub(crate) fn wait(&self, deadline: &Deadline<'_>) -> Result<()> {
        for seat in &self.seats {
            seat.stream.wait(deadline)?;
        }
        Ok(())
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        if process::pid() != self.pid {
            return;
        }
        if let Err(error) = self.wait(&Deadline::after(CLOSE_LIMIT)) {
            tracing::warn!(%error, "GPUs were closed before their work had ended");
            // What still works there keeps what it uses; a GPU that has failed does nothing more.
            if matches!(error, Error::TimedOut { .. }) {
                std::mem::forget(std::mem::take(&mut self.seats));
            }
        }
    }
}

/// What messages call a GPU.
fn name_of(ordinal: usize, gpu: &GpuDevice) -> String {
    format!("GPU {ordinal} ({}, {})", gpu.name, gpu.identity)
}

fn names(gpus: &[(usize, GpuDevice)]) -> String {
    gpus.iter().map(|(ordinal, gpu)| name_of(*ordinal, gpu)).collect::<Vec<_>>().join(", ")
}

/// What there is, for messages.
fn listing(view: &View) -> String {
    let all = view.gpus.iter().cloned().enumerate().collect::<Vec<_>>();
    let seen = if all.is_empty() { "no GPU".to_owned() } else { names(&all) };
    format!("this process sees {seen}{}", shown(view))
}

/// The variables that say what is seen, for messages.
fn shown(view: &View) -> String {
    let set = view.variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    if set.is_empty() { String::new() } else { format!(" with {}", set.join(" ")) }
}

/// Whether this is what the driver calls a GPU: by its UUID, or by its PCI address.
fn is_same(gpu: &GpuDevice, identity: &str) -> bool {
    let digits = |text: &str| text.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_lowercase();
    let uuid = gpu.identity.split_once('-').map_or("", |(_, uuid)| uuid);
    match gpu.vendor {
        GpuVendor::Nvidia => !uuid.is_empty() && digits(uuid) == digits(identity),
        _ => !gpu.pci_address.is_empty() && gpu.pci_address.eq_ignore_ascii_case(identity),
    }
}

/// The class that kernels dispatch as: the one asked for if all can run it, else that of all GPUs.
fn class_of(gpus: &[(usize, GpuDevice)], asked: Option<GpuClass>) -> Result<Option<GpuClass>> {
    let Some(asked) = asked else {
        let first = gpus[0].1.gpu_class;
        return Ok(first.filter(|class| gpus.iter().all(|(_, gpu)| gpu.gpu_class == Some(*class))));
    };
    // Code for one NVIDIA generation is translated for later ones; AMD's is for its own alone.
    let runs = |gpu: &GpuDevice| match (gpu.vendor, gpu.gpu_class) {
        (GpuVendor::Nvidia, Some(own)) => asked.number() <= own.number(),
        (_, own) => own == Some(asked),
    };
    match gpus.iter().find(|(_, gpu)| !runs(gpu)) {
        None => Ok(Some(asked)),
        Some((ordinal, gpu)) => {
            let own = gpu.gpu_class.map_or("of no known class", GpuClass::name);
            let reason = format!("{} is {own} and cannot run it", name_of(*ordinal, gpu));
            Err(Error::invalid("gpu_class", asked, "argument", reason))
        }
    }
}
