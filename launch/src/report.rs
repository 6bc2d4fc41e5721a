//! `uform report`: what the members of a run were doing, by the records that they keep while they run.

mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use uform::recorder::{self, Moment, Record, RecordedCall};
use uform::sys::process;
use uform::vocabulary::Status;

use crate::Failure;

/// Shows who was where: the last calls of every member of a run, who is behind, and who has died; where a call failed, the
/// stacks of the Python programs.
///
/// Every member records its last 1,000 calls in a file that outlives it, also a kill -9. The message of a call that failed names
/// the folder; a run that goes on may be looked at too.
#[derive(Args)]
pub(crate) struct Options {
    /// The folder of a run, or one of runs, or one record; without it the runs of this user on this host
    directory: Option<PathBuf>,
    /// How many of the last calls of each member are shown
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    last: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write all calls of all members into this file, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE")]
    chrome: Option<PathBuf>,
}

/// The records of one run.
struct Run {
    name: String,
    records: Vec<Record>,
}

/// Runs the command.
pub(crate) fn execute(options: &Options) -> Result<i32, Failure> {
    let place = match &options.directory {
        Some(given) => given.clone(),
        None => uform::environment::record::records()?.path(),
    };
    let (records, damages) = match std::fs::metadata(&place) {
        Ok(found) if found.is_dir() => recorder::read_folder(&place),
        Ok(_) => (vec![recorder::read(&place)?], Vec::new()),
        Err(error) => return Err(Failure::system(format!("read {}", place.display()), error)),
    };
    if records.is_empty() {
        return match damages.into_iter().next() {
            Some(damage) => Err(damage.into()),
            None => Err(Failure::NoRecords { folder: place.display().to_string() }),
        };
    }
    let runs = runs(records);
    if let Some(path) = &options.chrome {
        let text = trace::text(&runs);
        if path.as_os_str() == "-" {
            crate::print(&text)?;
            return Ok(0);
        }
        let written = std::fs::write(path, text);
        written.map_err(|error| Failure::system(format!("write {}", path.display()), error))?;
    }
    let damages = damages.iter().map(uform::Error::chain).collect::<Vec<_>>();
    if options.json {
        let runs = runs.iter().map(Run::as_json).collect::<Vec<_>>();
        crate::print(&format!("{:#}\n", json!({ "runs": runs, "unreadable": damages })))?;
        return Ok(0);
    }
    let mut text = String::new();
    for run in &runs {
        run.describe(&mut text, options.last);
    }
    for damage in damages {
        let _ = writeln!(text, "unreadable: {damage}");
    }
    crate::print(&text)?;
    Ok(0)
}

/// The records by run, each with its own folder.
fn runs(records: Vec<Record>) -> Vec<Run> {
    let mut found: BTreeMap<PathBuf, Run> = BTreeMap::new();
    for record in records {
        let folder = record.path.parent().map_or_else(PathBuf::new, std::path::Path::to_owned);
        let name = record.identity.run.clone();
        found.entry(folder).or_insert_with(|| Run { name, records: Vec::new() }).records.push(record);
    }
    found.into_values().collect()
}

/// What can be said of the process now.
fn state(record: &Record) -> &'static str {
    let own = &record.identity;
    if record.is_closed {
        "closed its mesh"
    } else if process::boot_id().is_ok_and(|boot_id| boot_id == own.boot_id) {
        match process::is_alive(own.pid, own.start_ticks) {
            true if process::is_stopped(own.pid) => "stopped",
            true => "alive",
            false => "died",
        }
    } else {
        "of another host"
    }
}

/// A time of day, by the clock of the member's host.
fn time(moment: Moment) -> String {
    let seconds = moment / 1_000_000_000;
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{hour:02}:{minute:02}:{:02}.{:06}", seconds % 60, moment / 1000 % 1_000_000)
}

/// A span between two moments.
fn span(nanoseconds: Moment) -> String {
    match nanoseconds {
        ..1_000_000 => format!("{:.1} us", nanoseconds as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.1} s", nanoseconds as f64 / 1e9),
    }
}

/// How one call went.
fn course(call: &RecordedCall) -> String {
    let waited =
        call.matched.map(|matched| format!(", {} of it for the others", span(matched - call.entered)));
    let took = call.left.map(|left| span(left - call.entered)).unwrap_or_default();
    match (call.outcome, call.matched) {
        (None, None) => "waits for the others".to_owned(),
        (None, Some(_)) => "moves payload".to_owned(),
        (Some(Status::Success), _) => format!("took {took}{}", waited.unwrap_or_default()),
        (Some(status), _) => format!("failed after {took}: {status:?}"),
    }
}

/// What a member has left of the stacks of its interpreter, as the interpreter writes them.
fn stacks(text: &mut String, record: &Record) {
    let own = &record.identity;
    if let Some((moment, stacks)) = recorder::read_stacks(&record.path) {
        let _ = writeln!(text, "stacks of index {} (pid {}) at {}:", own.index, own.pid, time(moment));
        for line in stacks.lines() {
            let _ = writeln!(text, "  {line}");
        }
    } else if record.gives_stacks && !record.is_closed && state(record) != "alive" {
        let _ = writeln!(text, "stacks of index {} (pid {}): none, {}", own.index, own.pid, state(record));
    }
}

impl Run {
    /// The last number of each member in each group that several of them are in.
    fn progress(&self) -> BTreeMap<&str, BTreeMap<usize, u64>> {
        let mut groups: BTreeMap<&str, BTreeMap<usize, u64>> = BTreeMap::new();
        for record in &self.records {
            for call in &record.calls {
                let last = groups.entry(&call.group).or_default().entry(record.identity.index).or_default();
                *last = call.sequence.max(*last);
            }
        }
        groups
    }

    /// The members that have made fewer calls than others of their group: index, its last number, the group's last, the group.
    fn behind(&self) -> Vec<(usize, u64, u64, &str)> {
        let mut found = Vec::new();
        for (group, members) in self.progress() {
            let most = members.values().max().copied().unwrap_or(0);
            let fewer = members.into_iter().filter(|(_, last)| *last < most);
            found.extend(fewer.map(|(index, last)| (index, last, most, group)));
        }
        // Those without any call, in the group of all.
        let most =
            self.progress().get("run").and_then(|members| members.values().max().copied()).unwrap_or(0);
        let silent = self.records.iter().filter(|record| record.calls.is_empty() && most > 0);
        found.extend(silent.map(|record| (record.identity.index, 0, most, "run")));
        found
    }

    /// The indexes of which there is no record here.
    fn absent(&self) -> Vec<u32> {
        let count = self.records.iter().map(|record| record.identity.count).max().unwrap_or(0);
        let known = self.records.iter().map(|record| record.identity.index).collect::<BTreeSet<_>>();
        // A damaged record may say any count.
        (0..count.min(1 << 20))
            .filter(|index| !known.contains(index))
            .filter_map(|index| u32::try_from(index).ok())
            .collect()
    }

    fn describe(&self, text: &mut String, last: usize) {
        let _ = writeln!(text, "run {}", self.name);
        for record in &self.records {
            let own = &record.identity;
            let (state, words) = (state(record), record.last_words());
            let _ = writeln!(
                text,
                "  index {} of {} (host {}, pid {}), {state}: {words}",
                own.index, own.count, own.host, own.pid
            );
        }
        let absent = self.absent();
        if !absent.is_empty() {
            let indexes = uform::topology::ranges(&absent);
            let _ = writeln!(text, "  no record here of index {indexes}: of another host, or never formed");
        }
        for (index, own, most, group) in self.behind() {
            let _ = writeln!(
                text,
                "  index {index} is behind: call {own} of group {group}, others are at {most}"
            );
        }
        for record in &self.records {
            let own = &record.identity;
            let _ = writeln!(text, "last calls of index {}, {} in all:", own.index, record.begun);
            for call in record.calls.iter().rev().take(last).rev() {
                let _ = writeln!(text, "  {} {call}, {}", time(call.entered), course(call));
            }
        }
        for record in &self.records {
            stacks(text, record);
        }
    }

    fn as_json(&self) -> Value {
        let members = self.records.iter().map(|record| {
            let own = &record.identity;
            let calls = record.calls.iter().map(call_as_json).collect::<Vec<_>>();
            json!({
                "index": own.index,
                "count": own.count,
                "host": own.host,
                "pid": own.pid,
                "command": own.command,
                "state": state(record),
                "last_words": record.last_words(),
                "has_failed": record.has_failed,
                "call_count": record.begun,
                "stacks": recorder::read_stacks(&record.path).map(|(_, text)| text),
                "calls": calls,
                "path": record.path,
            })
        });
        let behind = self.behind().into_iter().map(|(index, own, most, group)| {
            json!({ "index": index, "group": group, "call": own, "furthest_call": most })
        });
        json!({
            "run": self.name,
            "members": members.collect::<Vec<_>>(),
            "without_record": self.absent(),
            "behind": behind.collect::<Vec<_>>(),
        })
    }
}

/// One call; moments are nanoseconds since 1970 by the clock of the member's host.
fn call_as_json(call: &RecordedCall) -> Value {
    json!({
        "number": call.number,
        "group": call.group,
        "sequence": call.sequence,
        "verb": call.verb.word(),
        "dtype": call.dtype.to_string(),
        "op": call.op.to_string(),
        "element_count": call.count,
        "root": call.root,
        "site": call.site,
        "entered": nanoseconds(call.entered),
        "matched": call.matched.map(nanoseconds),
        "left": call.left.map(nanoseconds),
        "outcome": call.outcome.map(|status| format!("{status:?}")),
    })
}

fn nanoseconds(moment: Moment) -> u64 {
    u64::try_from(moment).unwrap_or(0)
}
