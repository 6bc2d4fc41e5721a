//! Trainers: parameters in, updates out.

use std::ffi::{c_char, c_int, c_void};

use uform::error::{Error, Result};
use uform::trainer::ViewMut;
use uform::vocabulary::{Dtype, Verb};

use crate::argument::{self, Out};
use crate::call::Calling;
use crate::collective::telling;
use crate::handle::{self, Executor, Handled, Mesh, Trainer};
use crate::structure::{Adamw, CallOptions, Parameter, Sgd, StepReport, TrainerOptions};
use crate::versioned::Place;
use crate::{deferred, executor, mesh, text, verbs, versioned};

/// A trainer as C holds it.
struct Held(uform::Trainer);

impl Handled for Held {
    type Handle = Trainer;
    const NOUN: &'static str = "trainer";
}

verbs! {
    /// Makes a trainer on a mesh.
    fn uform_trainer_open(
        mesh: *const Mesh,
        parameters: *const Parameter,
        parameter_count: usize,
        trainer_options: *const TrainerOptions,
        options: *const CallOptions,
        trainer: *mut *mut Trainer,
    ) {
        let place = Out::handle(trainer, "trainer")?;
        let mesh = handle::get::<mesh::Held>(mesh)?;
        let given = telling(&mesh.inner, Verb::AllGather, || {
            let parameters = versioned::read_array(parameters, parameter_count, "parameters")?;
            let parameters = parameters.iter().map(|given| parameter(given)).collect::<Result<Vec<_>>>()?;
            let (optimizer, clip_norm) = trainer_options_of(trainer_options)?;
            Ok((parameters, optimizer, clip_norm, Calling::read(options)?.blocking("trainer.open")?))
        });
        let (parameters, optimizer, clip_norm, calling) = given?;
        let trainer = calling.run(|deadline| {
            uform::Trainer::open(&mesh.inner, &parameters, optimizer, clip_norm, deadline)
        })?;
        place.put(handle::give(Held(trainer)));
        Ok(())
    }

    /// How many parameters it has.
    fn uform_trainer_parameter_count(trainer: *const Trainer, count: *mut usize) {
        let count = Out::new(count, "count")?;
        count.put(handle::get::<Held>(trainer)?.0.names().len());
        Ok(())
    }

    /// Copies the name of a parameter, by its place in the order of the opening.
    fn uform_trainer_parameter_name(
        trainer: *const Trainer,
        position: usize,
        text: *mut c_char,
        capacity: usize,
        length: *mut usize,
    ) {
        let trainer = handle::get::<Held>(trainer)?;
        let names = trainer.0.names();
        let name = names.get(position).ok_or_else(|| {
            Error::invalid("position", position, "argument", format!("must be below {}", names.len()))
        })?;
        text::give(name, text, capacity, length)
    }

    /// Where a parameter lies, for reading.
    fn uform_trainer_parameter(
        trainer: *const Trainer,
        name: *const c_char,
        pointer: *mut *const c_void,
        byte_count: *mut usize,
    ) {
        let (pointer, byte_count) = (Out::new(pointer, "pointer")?, Out::new(byte_count, "byte_count")?);
        let view = handle::get::<Held>(trainer)?.0.parameter(argument::text("name", name)?)?;
        let (start, bytes) = view.place()?;
        pointer.put(start.cast());
        byte_count.put(bytes);
        Ok(())
    }

    /// Where this member's gradient of a parameter lies.
    fn uform_trainer_gradient(
        trainer: *const Trainer,
        name: *const c_char,
        pointer: *mut *mut c_void,
        byte_count: *mut usize,
    ) {
        let place = (Out::handle(pointer, "pointer")?, Out::new(byte_count, "byte_count")?);
        locate(&handle::get::<Held>(trainer)?.0.gradient(argument::text("name", name)?)?, place)
    }

    /// Where a parameter lies on one of this member's GPUs, for reading.
    fn uform_trainer_parameter_on(
        trainer: *const Trainer,
        name: *const c_char,
        device: usize,
        pointer: *mut *const c_void,
        byte_count: *mut usize,
    ) {
        let (pointer, byte_count) = (Out::new(pointer, "pointer")?, Out::new(byte_count, "byte_count")?);
        let view = handle::get::<Held>(trainer)?.0.parameter_on(argument::text("name", name)?, device)?;
        let (start, bytes) = view.place()?;
        pointer.put(start.cast());
        byte_count.put(bytes);
        Ok(())
    }

    /// Where the gradient of a parameter lies on one of this member's GPUs.
    fn uform_trainer_gradient_on(
        trainer: *const Trainer,
        name: *const c_char,
        device: usize,
        pointer: *mut *mut c_void,
        byte_count: *mut usize,
    ) {
        let place = (Out::handle(pointer, "pointer")?, Out::new(byte_count, "byte_count")?);
        locate(&handle::get::<Held>(trainer)?.0.gradient_on(argument::text("name", name)?, device)?, place)
    }

    /// Updates all parameters with the weighted mean of all members' gradients.
    fn uform_trainer_step(
        trainer: *const Trainer,
        weight: f64,
        options: *const CallOptions,
        report: *mut StepReport,
    ) {
        let place = if report.is_null() { None } else { Some(Place::new(report, "report")?) };
        let trainer = handle::get::<Held>(trainer)?;
        let calling = Calling::read(options)?.silent("trainer.step")?;
        let put = move |done: uform::StepReport| {
            if let Some(place) = &place {
                place.put(&report_of(&done));
            }
        };
        match calling.deferred() {
            None => calling.run(|deadline| trainer.0.step(weight, deadline)).map(put),
            Some(deferred) => {
                let submitted = trainer.0.deferred(None).step(weight, calling.deadline());
                deferred::give(deferred, submitted, put);
                Ok(())
            }
        }
    }

    /// Waits until all members are here; then index 0 may write parameters.
    fn uform_trainer_begin_edit(trainer: *const Trainer, options: *const CallOptions) {
        let trainer = handle::get::<Held>(trainer)?;
        Calling::read(options)?
            .blocking("trainer.begin_edit")?
            .run(|deadline| trainer.0.begin_edit(deadline))
    }

    /// Where a parameter lies, for writing.
    fn uform_trainer_editable(
        trainer: *const Trainer,
        name: *const c_char,
        pointer: *mut *mut c_void,
        byte_count: *mut usize,
    ) {
        let place = (Out::handle(pointer, "pointer")?, Out::new(byte_count, "byte_count")?);
        locate(&handle::get::<Held>(trainer)?.0.editable(argument::text("name", name)?)?, place)
    }

    /// Waits until all members are here; what index 0 wrote holds for all.
    fn uform_trainer_end_edit(trainer: *const Trainer, options: *const CallOptions) {
        let trainer = handle::get::<Held>(trainer)?;
        Calling::read(options)?
            .blocking("trainer.end_edit")?
            .run(|deadline| trainer.0.end_edit(deadline))
    }

    /// Writes a checkpoint.
    fn uform_trainer_save(
        trainer: *const Trainer,
        directory: *const c_char,
        step: u64,
        options: *const CallOptions,
    ) {
        let trainer = handle::get::<Held>(trainer)?;
        let directory = argument::path("directory", directory)?;
        let calling = Calling::read(options)?.silent("trainer.save")?;
        match calling.deferred() {
            None => calling.run(|deadline| trainer.0.save(&directory, step, deadline)),
            Some(deferred) => {
                let submitted = trainer.0.deferred(None).save(directory, step, calling.deadline());
                deferred::give(deferred, submitted, |()| ());
                Ok(())
            }
        }
    }

    /// Reads the newest checkpoint that is whole.
    fn uform_trainer_load(
        trainer: *const Trainer,
        directory: *const c_char,
        options: *const CallOptions,
        step: *mut u64,
    ) {
        let place = if step.is_null() { None } else { Some(Out::new(step, "step")?) };
        let trainer = handle::get::<Held>(trainer)?;
        let directory = argument::path("directory", directory)?;
        let calling = Calling::read(options)?.silent("trainer.load")?;
        let put = move |found| {
            if let Some(place) = place {
                place.put(found);
            }
        };
        match calling.deferred() {
            None => calling.run(|deadline| trainer.0.load(&directory, deadline)).map(put),
            Some(deferred) => {
                let submitted = trainer.0.deferred(None).load(directory, calling.deadline());
                deferred::give(deferred, submitted, put);
                Ok(())
            }
        }
    }

    /// The same trainer with its calls on another executor.
    fn uform_trainer_on(trainer: *const Trainer, executor: *const Executor, other: *mut *mut Trainer) {
        let other = Out::handle(other, "other")?;
        let trainer = handle::get::<Held>(trainer)?;
        let inner = trainer.0.on(&handle::get::<executor::Held>(executor)?.inner);
        other.put(handle::give(Held(inner)));
        Ok(())
    }

    /// How many updates the parameters have seen.
    fn uform_trainer_updates(trainer: *const Trainer, updates: *mut u64) {
        let updates = Out::new(updates, "updates")?;
        updates.put(handle::get::<Held>(trainer)?.0.updates());
        Ok(())
    }

    /// Releases the trainer and its memory.
    fn uform_trainer_free(trainer: *mut Trainer) {
        handle::take::<Held>(trainer).map(drop)
    }
}

fn report_of(done: &uform::StepReport) -> StepReport {
    StepReport {
        step: done.step,
        gradient_norm: done.gradient_norm.unwrap_or(0.0),
        weight: done.weight,
        communication_seconds: done.communication_seconds,
        seconds: done.seconds,
        skipped: c_int::from(done.skipped),
        has_gradient_norm: c_int::from(done.gradient_norm.is_some()),
        ..StepReport::default()
    }
}

/// Tells C where a view lies: it stays there as long as the trainer, which keeps the memory.
fn locate(view: &ViewMut, (pointer, byte_count): (Out<*mut c_void>, Out<usize>)) -> Result<()> {
    let (start, bytes) = view.place()?;
    pointer.put(start.cast());
    byte_count.put(bytes);
    Ok(())
}

/// A parameter as the core takes it.
///
/// # Safety
/// Its name is null or zero-ended, its shape null or of as many extents as it says, its values null or of as many
/// elements as the shape has; all of them until the call returns.
unsafe fn parameter<'a>(given: &Parameter) -> Result<uform::Parameter<'a>> {
    // SAFETY: the caller of this function vouches for the name.
    let name = unsafe { argument::text("name of a parameter", given.name) }?;
    let named = |part: &str| format!("{part} of parameter `{name}`");
    // SAFETY: the caller of this function vouches for as many extents.
    let shape = unsafe { argument::numbers(&named("shape"), given.shape, given.dimension_count) }?;
    let shape = shape.unwrap_or_default();
    let dtype = argument::number(&named("dtype"), given.dtype, Dtype::from_number)?;
    let values = if given.values.is_null() {
        None
    } else {
        // An extent of 0 makes nothing of all the others, however large.
        let count = if shape.contains(&0) { Some(0) } else { checked_product(&shape) };
        let bytes = argument::byte_count(count.unwrap_or(usize::MAX), dtype)?;
        // SAFETY: the caller of this function vouches for as many elements.
        Some(unsafe { argument::span(&named("values"), given.values, bytes, dtype.size_bytes()) }?)
    };
    Ok(uform::Parameter { name: name.to_owned(), shape, dtype, values })
}

fn checked_product(extents: &[usize]) -> Option<usize> {
    extents.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent))
}

/// The optimizer and the norm of clipping.
///
/// # Safety
/// `options`, and the optimizers it points to, are null or valid for reads of their `struct_size`.
unsafe fn trainer_options_of(options: *const TrainerOptions) -> Result<(uform::Optimizer, Option<f64>)> {
    // SAFETY: the caller of this function keeps the same promise.
    let options = unsafe { versioned::read(options, "trainer_options") }?;
    let optimizer = match (options.sgd.is_null(), options.adamw.is_null()) {
        (false, true) => {
            // SAFETY: as above.
            let Sgd { learning_rate, momentum, weight_decay, nesterov, reserved, .. } =
                unsafe { versioned::read(options.sgd, "sgd") }?;
            if reserved != 0 {
                return Err(Error::invalid("reserved", reserved, "argument", "must be 0"));
            }
            uform::Optimizer::Sgd { learning_rate, momentum, nesterov: nesterov != 0, weight_decay }
        }
        (true, false) => {
            // SAFETY: as above.
            let Adamw { learning_rate, beta1, beta2, epsilon, weight_decay, .. } =
                unsafe { versioned::read(options.adamw, "adamw") }?;
            uform::Optimizer::AdamW { learning_rate, beta1, beta2, epsilon, weight_decay }
        }
        (none, _) => {
            let value = if none { "none" } else { "two" };
            return Err(Error::invalid("optimizer", value, "trainer_options", "exactly one must be given"));
        }
    };
    Ok((optimizer, if options.clip_norm == 0.0 { None } else { Some(options.clip_norm) }))
}
