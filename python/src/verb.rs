//! Verbs on arrays as Python calls them, for a mesh and for a deferred mesh alike.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use uform::communicator::Call;
use uform::sys::{Deadline, SpanMut};
use uform::vocabulary::{Dtype, ReduceOp, Verb};
use uform::{Error, Progress};

use crate::argument;
use crate::buffer::{self, Buffer, Loan, Pair, Spans, same_dtype};
use crate::error::{invalid, to_python};
use crate::interrupt::blocking;
use crate::progress::Report;
use crate::site;
use crate::vocabulary::Enumeration;

pub(crate) type Given<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// The deadline of a verb that a caller gave.
pub(crate) fn deadline(py: Python<'_>, timeout_seconds: Given<'_, '_>) -> PyResult<Deadline<'static>> {
    let seconds = argument::number_or("timeout_seconds", timeout_seconds, 0.0)?;
    uform::Mesh::verb_deadline(seconds).map_err(|error| to_python(py, &error))
}

/// Runs `call` within the deadline of a verb, detached.
pub(crate) fn within<T: Send>(
    py: Python<'_>,
    timeout_seconds: Given<'_, '_>,
    call: impl FnOnce(&Deadline<'_>) -> uform::Result<T> + Send,
) -> PyResult<T> {
    let deadline = deadline(py, timeout_seconds)?;
    blocking(py, |interrupt| match interrupt {
        Some(interrupt) => call(&deadline.interruptible(interrupt)),
        None => call(&deadline),
    })
}

/// One call on arrays as Python gave it.
pub(crate) struct Request<'a, 'py> {
    pub(crate) verb: Verb,
    /// `None` in place.
    pub(crate) input: Given<'a, 'py>,
    /// The name and the array of what is written; `None` where this process has no use for it.
    pub(crate) output: (&'static str, Given<'a, 'py>),
    pub(crate) op: Given<'a, 'py>,
    pub(crate) root: Given<'a, 'py>,
    pub(crate) tag: Given<'a, 'py>,
    /// Their name and what it is.
    pub(crate) counts: (&'static str, Given<'a, 'py>),
    pub(crate) receive_counts: Given<'a, 'py>,
    pub(crate) reproducible: Given<'a, 'py>,
    pub(crate) timeout_seconds: Given<'a, 'py>,
    pub(crate) progress: Given<'a, 'py>,
}

/// What the core needs of it.
struct Arguments {
    form: Form,
    arrays: Arrays,
    deadline: Deadline<'static>,
    report: Option<Arc<Report>>,
}

/// The arrays of one call, or those of each call of a list.
#[allow(clippy::large_enum_variant, reason = "small calls must not allocate")]
enum Arrays {
    Pair(Pair),
    /// One call, with arrays on each of several GPUs.
    Gpus(Vec<Pair>),
    List(Vec<Pair>),
}

/// A call without its arrays.
struct Form {
    verb: Verb,
    op: ReduceOp,
    root: usize,
    tag: u64,
    counts: Option<Vec<usize>>,
    receive_counts: Option<Vec<usize>>,
    reproducible: bool,
}

impl Form {
    #[inline]
    fn call<'a>(
        &'a self,
        dtype: Dtype,
        Spans { input, output, gpu, layouts: [input_layout, output_layout] }: Spans<'a>,
        progress: Option<Progress<'a>>,
    ) -> Call<'a> {
        let (counts, receive_counts) = (self.counts.as_deref(), self.receive_counts.as_deref());
        let (reproducible, tag) = (self.reproducible, self.tag);
        let call = Call::new(self.verb, dtype, self.op, self.root, input, output);
        Call { gpu, counts, receive_counts, input_layout, output_layout, reproducible, tag, progress, ..call }
    }

    #[inline]
    fn call_on<'a>(&'a self, pair: &'a mut Pair, progress: Option<Progress<'a>>) -> Call<'a> {
        self.call(dtype_of(pair), buffer::spans(pair), progress)
    }

    /// One call on all of these, each on another GPU. What is not there is for the core to refuse.
    fn call_on_gpus<'a>(
        &'a self,
        dtype: Dtype,
        all: impl Iterator<Item = Spans<'a>>,
        progress: Option<Progress<'a>>,
    ) -> Call<'a> {
        let mut call: Option<Call<'a>> = None;
        for Spans { input, output, gpu, layouts: [input_layout, output_layout] } in all {
            match &mut call {
                None => {
                    let gpu = Some(gpu.unwrap_or_default());
                    let spans = Spans { input, output, gpu, layouts: [input_layout, output_layout] };
                    call = Some(self.call(dtype, spans, progress.clone()));
                }
                Some(call) => {
                    call.further_gpus.push(gpu.unwrap_or_default());
                    call.input = call.input.or(input);
                    call.input_layout = call.input_layout.or(input_layout);
                    call.output_layout = call.output_layout.or(output_layout);
                    if !output.is_empty() {
                        call.output = output;
                    }
                }
            }
        }
        call.unwrap_or_else(|| Call::new(self.verb, dtype, self.op, self.root, None, SpanMut::empty()))
    }
}

/// Arrays and reports of a call that goes on without the interpreter.
pub(crate) struct Lent {
    form: Form,
    /// Whether all are of one call, each on another GPU.
    is_on_gpus: bool,
    dtypes: Vec<Dtype>,
    loan: Loan,
    tell: Option<Box<dyn Fn(u64, u64) + Send + Sync>>,
}

impl<'a, 'py> Request<'a, 'py> {
    /// A call in place, or into `out` where there is one.
    pub(crate) fn new(verb: Verb, array: &'a Bound<'py, PyAny>, out: Given<'a, 'py>) -> Self {
        let (input, output) = match out {
            Some(out) => (Some(array), ("out", Some(out))),
            None => (None, ("array", Some(array))),
        };
        Self { input, output, ..Self::two(verb, None, None) }
    }

    /// A call from one array into another; a process that has no use for one of them may give None.
    pub(crate) fn between(verb: Verb, array: &'a Bound<'py, PyAny>, out: &'a Bound<'py, PyAny>) -> Self {
        let given = |array: &'a Bound<'py, PyAny>| (!array.is_none()).then_some(array);
        Self::two(verb, given(array), given(out))
    }

    /// A send to another process, or a receive from it.
    pub(crate) fn paired(
        verb: Verb,
        array: &'a Bound<'py, PyAny>,
        other: &'a Bound<'py, PyAny>,
        tag: Given<'a, 'py>,
    ) -> Self {
        let (input, output) = if verb == Verb::Send { (Some(array), None) } else { (None, Some(array)) };
        let output = (if verb == Verb::Send { "out" } else { "array" }, output);
        Self { input, output, root: Some(other), tag, ..Self::two(verb, None, None) }
    }

    fn two(verb: Verb, input: Given<'a, 'py>, output: Given<'a, 'py>) -> Self {
        Self {
            verb,
            input,
            output: ("out", output),
            op: None,
            root: None,
            tag: None,
            counts: ("counts", None),
            receive_counts: None,
            reproducible: None,
            timeout_seconds: None,
            progress: None,
        }
    }

    /// Runs it to its end.
    pub(crate) fn run(self, py: Python<'py>, mesh: &uform::Mesh) -> PyResult<()> {
        // The arrays are given back here, attached, and not by the call.
        let Arguments { form, mut arrays, deadline, report } = self.arguments(py, mesh)?;
        let tell = |done, total| report.iter().for_each(|report| report.tell(done, total));
        let result = blocking(py, |interrupt| {
            let deadline = interrupt.map_or(deadline, |interrupt| deadline.interruptible(interrupt));
            let progress = report.as_ref().map(|_| Progress::new(&tell));
            match &mut arrays {
                Arrays::Pair(pair) => mesh.run(form.call_on(pair, progress), &deadline),
                Arrays::Gpus(pairs) => {
                    let dtype = pairs.first().map_or(Dtype::U8, dtype_of);
                    let spans = pairs.iter_mut().map(buffer::spans);
                    mesh.run(form.call_on_gpus(dtype, spans, progress), &deadline)
                }
                Arrays::List(pairs) => {
                    let calls = pairs.iter_mut().map(|pair| form.call_on(pair, progress.clone()));
                    mesh.run_many(form.verb, calls.collect(), &deadline)
                }
            }
        });
        match &report {
            Some(report) => report.outcome(py, result),
            None => result,
        }
    }

    /// Submits it; what is wrong with the arguments is said here.
    pub(crate) fn submit(
        self,
        py: Python<'py>,
        mesh: &uform::DeferredMesh,
    ) -> PyResult<(uform::Deferred<Lent>, Option<Arc<Report>>)> {
        let Arguments { form, arrays, deadline, report } = self.arguments(py, mesh.mesh())?;
        let tell = report.clone().map(|report| {
            Box::new(move |done, total| report.tell(done, total)) as Box<dyn Fn(u64, u64) + Send + Sync>
        });
        let (pairs, is_list, is_on_gpus) = match arrays {
            Arrays::Pair(pair) => (vec![pair], false, false),
            Arrays::Gpus(pairs) => (pairs, false, true),
            Arrays::List(pairs) => (pairs, true, false),
        };
        let (dtypes, verb) = (pairs.iter().map(dtype_of).collect(), self.verb);
        let on_gpu = pairs.iter().any(|(input, output)| input.iter().chain(output).any(Buffer::is_on_gpu));
        let with = (form.root, form.tag);
        let lent = Lent { form, is_on_gpus, dtypes, loan: Loan::new(py, pairs)?, tell };
        let site = site::of_caller(py);
        let submit = || match is_list {
            true => mesh.run_many(verb, lent, |lent| Ok(lent.calls()), deadline),
            // On a GPU they have their place among all calls of the mesh.
            false if matches!(verb, Verb::Send | Verb::Receive) && !on_gpu => {
                mesh.run_paired(verb, with, lent, Lent::call, deadline)
            }
            false => mesh.run(verb, lent, Lent::call, deadline),
        };
        let call = py.detach(|| site.during(submit));
        Ok((call, report))
    }

    /// Checks it, and tells the peers if this process refuses to make the call.
    #[inline]
    fn arguments(&self, py: Python<'py>, mesh: &uform::Mesh) -> PyResult<Arguments> {
        self.read(py, mesh).inspect_err(|refusal| {
            let reason = refusal.value(py).to_string();
            let verb = self.verb;
            let error = Error::invalid("arguments", verb.word(), "argument", reason);
            py.detach(|| mesh.refuse(verb, &error));
        })
    }

    #[inline(always)]
    fn read(&self, py: Python<'py>, mesh: &uform::Mesh) -> PyResult<Arguments> {
        let op = self.op.map_or(Ok(ReduceOp::Sum), |given| ReduceOp::of_argument("op", given))?;
        let name = match self.verb {
            Verb::Send => "destination",
            Verb::Receive => "source",
            _ => "root",
        };
        let root = argument::count_or(name, self.root, 0)?;
        let tag = argument::count_or("tag", self.tag, 0)? as u64;
        let counts =
            |name: &str, given: Given<'_, 'py>| given.map(|given| argument::counts(name, given)).transpose();
        let receive_counts = counts("receive_counts", self.receive_counts)?;
        let counts = counts(self.counts.0, self.counts.1)?;
        let deadline = deadline(py, self.timeout_seconds)?;
        let report = self.progress.map(Report::new).transpose()?.map(Arc::new);
        let reproducible = self.reproducible.map_or(Ok(false), |given| {
            given.extract::<bool>().map_err(|_| invalid(py, "reproducible", given, "must be True or False"))
        })?;
        let arrays = match self.list(py, mesh)? {
            Some(pairs) if is_on_gpus(mesh, &pairs) => {
                one_dtype(py, mesh, &pairs)?;
                Arrays::Gpus(pairs)
            }
            Some(pairs) => Arrays::List(pairs),
            None => Arrays::Pair(pair(py, mesh, self.input, self.output)?),
        };
        let form = Form { verb: self.verb, op, root, tag, counts, receive_counts, reproducible };
        Ok(Arguments { form, arrays, deadline, report })
    }

    /// The pairs of a list or tuple of arrays; `None` for a lone array. An array of a pair may be None where there are several GPUs,
    /// as one of them alone is the root.
    fn list(&self, py: Python<'py>, mesh: &uform::Mesh) -> PyResult<Option<Vec<Pair>>> {
        let (name, output) = self.output;
        let inputs = self.input.map(items).transpose()?.flatten();
        let outputs = output.map(items).transpose()?.flatten();
        if inputs.is_none() && outputs.is_none() {
            return Ok(None);
        }
        let has_several = mesh.executor().gpus().len() > 1;
        let given = |one: &'_ Bound<'py, PyAny>| !(has_several && one.is_none());
        match (inputs, outputs) {
            (Some(inputs), None) if has_several && output.is_none() => inputs
                .iter()
                .map(|one| pair(py, mesh, Some(one), (name, None)))
                .collect::<PyResult<_>>()
                .map(Some),
            (None, Some(outputs)) if self.input.is_none() => outputs
                .iter()
                .map(|one| pair(py, mesh, None, (name, Some(one))))
                .collect::<PyResult<_>>()
                .map(Some),
            (Some(inputs), Some(outputs)) if inputs.len() == outputs.len() => {
                let both = inputs.iter().zip(&outputs);
                both.map(|(one, other)| {
                    let one = Some(one).filter(|one| given(one));
                    pair(py, mesh, one, (name, Some(other).filter(|other| given(other))))
                })
                .collect::<PyResult<_>>()
                .map(Some)
            }
            _ => {
                let none = py.None();
                let given = output.unwrap_or(none.bind(py));
                Err(invalid(
                    py,
                    name,
                    given,
                    "must be a list of as many arrays as array is, or both one array",
                ))
            }
        }
    }
}

/// Whether these are the arrays of one call, on each of several GPUs: in host memory a list is many calls.
fn is_on_gpus(mesh: &uform::Mesh, pairs: &[Pair]) -> bool {
    let mut arrays = pairs.iter().flat_map(|(input, output)| input.iter().chain(output));
    arrays.any(Buffer::is_on_gpu) && mesh.executor().gpus().len() > 1
}

/// Refuses arrays of one call that have different element types.
fn one_dtype(py: Python<'_>, mesh: &uform::Mesh, pairs: &[Pair]) -> PyResult<()> {
    let Some(first) = pairs.first().map(dtype_of) else { return Ok(()) };
    match pairs.iter().position(|pair| dtype_of(pair) != first) {
        None => Ok(()),
        Some(position) => {
            let gpus = mesh.executor().gpus();
            let gpu = gpus.get(position).map_or("a GPU", |gpu| gpu.name.as_str());
            let reason = format!(
                "must have the element type of the first one, {first}; it is that of index {} on GPU {position} of its executor \
                 ({gpu})",
                mesh.index()
            );
            let dtype = dtype_of(&pairs[position]);
            Err(to_python(py, &Error::invalid(format!("array {position}"), dtype, "argument", reason)))
        }
    }
}

/// The items of a list or tuple; `None` for anything else.
fn items<'py>(given: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    let is_list = given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>();
    if is_list { given.extract().map(Some) } else { Ok(None) }
}

/// Takes the arrays of one call.
#[inline(always)]
fn pair<'py>(
    py: Python<'py>,
    mesh: &uform::Mesh,
    input: Given<'_, 'py>,
    (name, output): (&'static str, Given<'_, 'py>),
) -> PyResult<Pair> {
    let output = output.map(|given| Buffer::for_writing(name, given, Some(mesh))).transpose()?;
    let input = input.map(|given| Buffer::for_reading("array", given, Some(mesh))).transpose()?;
    match (&input, &output) {
        (Some(input), Some(output)) => same_dtype(py, input, (name, output.dtype()))?,
        (None, None) => {
            let reason = "must be an array, where out is None too";
            return Err(invalid(py, "array", py.None().bind(py), reason));
        }
        _ => {}
    }
    Ok((input, output))
}

/// The element type of arrays, one of which is there.
fn dtype_of((input, output): &Pair) -> Dtype {
    output.as_ref().or(input.as_ref()).map_or(Dtype::U8, Buffer::dtype)
}

impl Lent {
    fn call(&mut self) -> uform::Result<Call<'_>> {
        if self.is_on_gpus {
            let Self { form, dtypes, loan, tell, .. } = self;
            let (dtype, progress) =
                (dtypes.first().copied(), tell.as_deref().map(|tell| Progress::new(tell)));
            return Ok(form.call_on_gpus(dtype.unwrap_or(Dtype::U8), loan.spans(), progress));
        }
        let none = || Error::invalid("array", "none", "argument", "must be given");
        self.calls().pop().ok_or_else(none)
    }

    fn calls(&mut self) -> Vec<Call<'_>> {
        let Self { form, dtypes, loan, tell, .. } = self;
        let progress = tell.as_deref().map(|tell| Progress::new(tell));
        let spans = loan.spans().zip(dtypes.iter());
        spans.map(|(spans, dtype)| form.call(*dtype, spans, progress.clone())).collect()
    }
}

/// Gives a class the verbs on arrays, with one signature wherever they are.
///
/// The class says with `carry` what it does with a request.
macro_rules! verbs {
    ($class:ident -> $answer:ty) => {
        #[allow(clippy::too_many_arguments, reason = "the signatures are those of the Python interface")]
        #[pymethods]
        impl $class {
            /// Every process gets the reduction of all.
            ///
            /// array: any shape, the same number of elements everywhere; of any type that
            /// op is for. A list or tuple of arrays is one call, agreed on once; where the executor has several GPUs and
            /// arrays are on them, it is one array for each GPU, as for every verb, and each GPU takes the place of a process.
            /// out: like array; None works in place. The bits of the result are the same everywhere, and in every run.
            /// reproducible: True makes them the same for any spread of processes over hosts, which costs more between hosts.
            #[pyo3(
                signature = (array, /, op=None, *, out=None, reproducible=None, timeout_seconds=None, progress=None),
                text_signature = "($self, array, /, op=uform.ReduceOp.SUM, *, out=None, reproducible=False, \
                                  timeout_seconds=0.0, progress=None)"
            )]
            fn all_reduce(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                op: $crate::verb::Given<'_, '_>,
                out: $crate::verb::Given<'_, '_>,
                reproducible: $crate::verb::Given<'_, '_>,
                timeout_seconds: $crate::verb::Given<'_, '_>,
                progress: $crate::verb::Given<'_, '_>,
            ) -> PyResult<$answer> {
                let request = $crate::verb::Request::new(Verb::AllReduce, array, out);
                self.carry(py, $crate::verb::Request { op, reproducible, timeout_seconds, progress, ..request })
            }

            /// The root gets the reduction of all.
            ///
            /// array: any shape, the same number of elements everywhere. root: the index that gets it. op: as in all_reduce.
            /// out: like array, written at the root only; None works in place.
            #[pyo3(
                signature = (
                    array, /, root=None, op=None, *, out=None, reproducible=None, timeout_seconds=None, progress=None
                ),
                text_signature = "($self, array, /, root=0, op=uform.ReduceOp.SUM, *, out=None, reproducible=False, \
                                  timeout_seconds=0.0, progress=None)"
            )]
            fn reduce(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                root: $crate::verb::Given<'_, '_>,
                op: $crate::verb::Given<'_, '_>,
                out: $crate::verb::Given<'_, '_>,
                reproducible: $crate::verb::Given<'_, '_>,
                timeout_seconds: $crate::verb::Given<'_, '_>,
                progress: $crate::verb::Given<'_, '_>,
            ) -> PyResult<$answer> {
                let request = $crate::verb::Request::new(Verb::Reduce, array, out);
                self.carry(py, $crate::verb::Request { root, op, reproducible, timeout_seconds, progress, ..request })
            }

            /// Every process gets the root's values.
            ///
            /// array: any shape and element type, the same number of elements everywhere. root: the index that gives.
            /// out: like array, gets the values everywhere, the root included; None works in place.
            #[pyo3(
                signature = (array, /, root=None, *, out=None, timeout_seconds=None, progress=None),
                text_signature = "($self, array, /, root=0, *, out=None, timeout_seconds=0.0, progress=None)"
            )]
            fn broadcast(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                root: $crate::verb::Given<'_, '_>,
                out: $crate::verb::Given<'_, '_>,
                timeout_seconds: $crate::verb::Given<'_, '_>,
                progress: $crate::verb::Given<'_, '_>,
            ) -> PyResult<$answer> {
                let request = $crate::verb::Request::new(Verb::Broadcast, array, out);
                self.carry(py, $crate::verb::Request { root, timeout_seconds, progress, ..request })
            }

            /// Every process gets the values of all, one after the other, by index.
            ///
            /// array: n elements. out: n * count elements of the same type. counts: how many elements each process brings, the
            /// same list everywhere, where they differ; out then has their sum.
            #[pyo3(
                signature = (array, out, /, *, counts=None, timeout_seconds=None, progress=None),
                text_signature = "($self, array, out, /, *, counts=None, timeout_seconds=0.0, progress=None)"
            )]
            fn all_gather(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                out: &Bound<'_, PyAny>,
                counts: $crate::verb::Given<'_, '_>,
                timeout_seconds: $crate::verb::Given<'_, '_>,
                progress: $crate::verb::Given<'_, '_>,
            ) -> PyResult<$answer> {
                let request = $crate::verb::Request::between(Verb::AllGather, array, out);
                self.carry(py, $crate::verb::Request { counts: ("counts", counts), timeout_seconds, progress, ..request })
            }

            /// Every process gets its part of the reduction of all, by index.
            ///
            /// array: n * count elements. out: n elements of the same type. op: as in all_reduce. counts: how many elements each
            /// process gets, the same list everywhere, where they differ; array then has their sum.
            #[pyo3(
                signature = (
                    array, out, /, op=None, *, counts=None, reproducible=None, timeout_seconds=None, progress=None
                ),
                text_signature = "($self, array, out, /, op=uform.ReduceOp.SUM, *, counts=None, reproducible=False, \
                                  timeout_seconds=0.0, progress=None)"
            )]
            fn reduce_scatter(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                out: &Bound<'_, PyAny>,
                op: $crate::verb::Given<'_, '_>,
                counts: $crate::verb::Given<'_, '_>,
                reproducible: $crate::verb::Given<'_, '_>,
                timeout_seconds: $crate::verb::Given<'_, '_>,
                progress: $crate::verb::Given<'_, '_>,
            ) -> PyResult<$answer> {
                let request = $crate::verb::Request::between(Verb::ReduceScatter, array, out);
                let request = $crate::verb::Request { op, counts: ("counts", counts), reproducible, ..request };
                self.carry(py, $crate::verb::Request { timeout_seconds, progress, ..request })
            }

            /// Every process gets one part of every other, by index.
            ///
            /// array: n * count elements, the part for each process in the order of indexes. out: n * count elements of the same
            /// type, the part from each. send_counts, receive_counts: both or none, how many elements go to each process and come
            /// from each, where they differ; DisagreedError names a pair that counts differently.
            #[pyo3(
                signature = (array, out, /, *, send_counts=None, receive_counts=None, timeout_seconds=None, progress=None),
                text_signature = "($self, array, out, /, *, send_counts=None, receive_counts=None, timeout_seconds=0.0, \
                                  progress=None)"
            )]
            fn all_to_all(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                out: &Bound<'_, PyAny>,
                send_counts: $crate::verb::Given<'_, '_>,
                receive_counts: $crate::verb::Given<'_, '_>,
                timeout_seconds: $crate::verb::Given<'_, '_>,
                progress: $crate::verb::Given<'_, '_>,
            ) -> PyResult<$answer> {
                let request = $crate::verb::Request::between(Verb::AllToAll, array, out);
                let counts = ("send_counts", send_counts);
                let request = $crate::verb::Request { counts, receive_counts, ..request };
                self.carry(py, $crate::verb::Request { timeout_seconds, progress, ..request })
            }

            /// The root gets the values of all, one after the other, by index.
            ///
            /// array: n elements. out: n * count elements of the same type at the root, elsewhere ignored and best None.
            /// counts: how many elements each process brings, the same list everywhere, where they differ.
            #[pyo3(
                signature = (array, out, /, root=None, *, counts=None, timeout_seconds=None, progress=None),
                text_signature = "($self, array, out, /, root=0, *, counts=None, timeout_seconds=0.0, progress=None)"
            )]
            fn gather(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                out: &Bound<'_, PyAny>,
                root: $crate::verb::Given<'_, '_>,
                counts: $crate::verb::Given<'_, '_>,
                timeout_seconds: $crate::verb::Given<'_, '_>,
                progress: $crate::verb::Given<'_, '_>,
            ) -> PyResult<$answer> {
                let request = $crate::verb::Request::between(Verb::Gather, array, out);
                let counts = ("counts", counts);
                self.carry(py, $crate::verb::Request { root, counts, timeout_seconds, progress, ..request })
            }

            /// Every process gets its part of the root's values, by index.
            ///
            /// array: n * count elements at the root, elsewhere ignored and best None. out: n elements of the same type.
            /// counts: how many elements each process gets, the same list everywhere, where they differ.
            #[pyo3(
                signature = (array, out, /, root=None, *, counts=None, timeout_seconds=None, progress=None),
                text_signature = "($self, array, out, /, root=0, *, counts=None, timeout_seconds=0.0, progress=None)"
            )]
            fn scatter(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                out: &Bound<'_, PyAny>,
                root: $crate::verb::Given<'_, '_>,
                counts: $crate::verb::Given<'_, '_>,
                timeout_seconds: $crate::verb::Given<'_, '_>,
                progress: $crate::verb::Given<'_, '_>,
            ) -> PyResult<$answer> {
                let request = $crate::verb::Request::between(Verb::Scatter, array, out);
                let counts = ("counts", counts);
                self.carry(py, $crate::verb::Request { root, counts, timeout_seconds, progress, ..request })
            }

            /// Gives one other process an array, which receives it with the same tag.
            ///
            /// array: any shape and element type, as many elements as array of the receive. destination: its index. tag: 0 to
            /// 2^64 - 1; messages of one tag are received in the order of their sends, and other tags do not wait for them.
            /// What fits into 64 KiB with all that was sent there and not received (over MPI 1 KiB) is sent before its
            /// receive; the send of more ends when the other process receives.
            #[pyo3(
                signature = (array, destination, /, *, tag=None, timeout_seconds=None, progress=None),
                text_signature = "($self, array, destination, /, *, tag=0, timeout_seconds=0.0, progress=None)"
            )]
            fn send(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                destination: &Bound<'_, PyAny>,
                tag: $crate::verb::Given<'_, '_>,
                timeout_seconds: $crate::verb::Given<'_, '_>,
                progress: $crate::verb::Given<'_, '_>,
            ) -> PyResult<$answer> {
                let request = $crate::verb::Request::paired(Verb::Send, array, destination, tag);
                self.carry(py, $crate::verb::Request { timeout_seconds, progress, ..request })
            }

            /// Takes an array that one other process sends with the same tag.
            ///
            /// array: written, as many elements as array of the send. source: its index. tag: as in send.
            #[pyo3(
                signature = (array, source, /, *, tag=None, timeout_seconds=None, progress=None),
                text_signature = "($self, array, source, /, *, tag=0, timeout_seconds=0.0, progress=None)"
            )]
            fn receive(
                &self,
                py: Python<'_>,
                array: &Bound<'_, PyAny>,
                source: &Bound<'_, PyAny>,
                tag: $crate::verb::Given<'_, '_>,
                timeout_seconds: $crate::verb::Given<'_, '_>,
                progress: $crate::verb::Given<'_, '_>,
            ) -> PyResult<$answer> {
                let request = $crate::verb::Request::paired(Verb::Receive, array, source, tag);
                self.carry(py, $crate::verb::Request { timeout_seconds, progress, ..request })
            }
        }
    };
}

pub(crate) use verbs;
