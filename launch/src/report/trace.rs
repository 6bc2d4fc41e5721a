//! Calls of all members as one trace in the JSON format of Chrome's viewer.
//!
//! Each member's times are its host's clock: members of one host are exact to each other, hosts are as exact as their clocks are set.

use serde_json::json;
use uform::recorder::Moment;

use super::Run;

/// The text of the trace: one process for each member, one thread for each of its groups.
pub(super) fn text(runs: &[Run]) -> String {
    let records = || runs.iter().flat_map(|run| &run.records);
    let calls = || records().flat_map(|record| &record.calls);
    let first = calls().map(|call| call.entered).min().unwrap_or(0);
    let last = calls().map(|call| call.left.unwrap_or(call.entered)).max().unwrap_or(0);
    let micros = |moment: Moment| moment as f64 / 1e3;
    let mut events = Vec::new();
    for (process, record) in records().enumerate() {
        let own = &record.identity;
        let name = format!("index {} (host {}, pid {}) of {}", own.index, own.host, own.pid, own.run);
        events.push(json!({ "ph": "M", "name": "process_name", "pid": process, "args": { "name": name } }));
        events.push(json!({
            "ph": "M", "name": "process_sort_index", "pid": process, "args": { "sort_index": own.index }
        }));
        let mut groups: Vec<&str> = Vec::new();
        for call in &record.calls {
            let known = groups.iter().position(|group| *group == call.group);
            let thread = known.unwrap_or_else(|| {
                groups.push(&call.group);
                let args = json!({ "name": call.group });
                let thread = groups.len() - 1;
                let event = json!({
                    "ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": args
                });
                events.push(event);
                thread
            });
            // One that has not ended is drawn to the end of the trace.
            let end = call.left.unwrap_or(last).max(call.entered);
            let event = |name: &str, start: Moment, end: Moment| {
                json!({
                    "ph": "X",
                    "name": name,
                    "cat": "call",
                    "pid": process,
                    "tid": thread,
                    "ts": micros(start - first),
                    "dur": micros((end - start).max(0)),
                    "args": {
                        "call": call.to_string(),
                        "site": call.site,
                        "outcome": call.outcome.map_or_else(|| "has not ended".to_owned(), |status| format!("{status:?}")),
                    },
                })
            };
            events.push(event(call.verb.word(), call.entered, end));
            let matched = call.matched.or_else(|| call.left.is_none().then_some(end));
            if let Some(matched) = matched {
                events.push(event("wait for the others", call.entered, matched.min(end)));
            }
        }
    }
    let clock = "the clock of each member's host, not corrected between hosts";
    let trace = json!({
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": { "first_nanoseconds_since_1970": first.to_string(), "clock": clock },
    });
    format!("{trace}\n")
}
