//! What the core reports of its work, on stderr: one line for each event, `uform: ` first.

use std::fmt;

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Starts reporting; `UFORM_LOG` says how much, in the notation of `tracing`, and warnings are shown without it.
///
/// An embedding program that already reports keeps its own way.
pub(crate) fn start(py: Python<'_>) -> PyResult<()> {
    let wanted: Option<String> =
        py.import("os")?.getattr("environ")?.call_method1("get", ("UFORM_LOG",))?.extract()?;
    let (filter, refusal) = match wanted.as_deref().map(str::trim) {
        None | Some("") => (EnvFilter::new("warn"), None),
        Some(text) => match EnvFilter::try_new(text) {
            Ok(filter) => (filter, None),
            Err(error) => (EnvFilter::new("warn"), Some(error.to_string())),
        },
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .event_format(Line)
        .with_writer(std::io::stderr)
        .finish();
    let started = tracing::subscriber::set_global_default(subscriber).is_ok();
    if let (true, Some(refusal)) = (started, refusal) {
        tracing::warn!("UFORM_LOG is not understood, warnings are shown: {refusal}");
    }
    Ok(())
}

struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = Text::default();
        event.record(&mut text);
        writeln!(writer, "uform: {}{}", text.message, text.fields)
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.fields.push_str(&format!(" {}={value:?}", field.name()));
        }
    }
}
