//! What was measured, as a value, as a table for people, and as JSON.

use std::fs::File;
use std::io::Write;

use serde::{Deserialize, Serialize};
use uform::topology::size;
use uform::vocabulary::Verb;

use crate::Failure;

/// All that one command measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) version: String,
    pub(super) verb: String,
    pub(super) dtype: String,
    /// How elements are combined, where the verb combines.
    pub(super) op: Option<String>,
    pub(super) root: Option<usize>,
    pub(super) processes: usize,
    pub(super) hosts: usize,
    pub(super) cpu_class: String,
    pub(super) rows: Vec<Row>,
    pub(super) peers: Vec<PeerReport>,
}

/// One size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) bytes: usize,
    pub(super) elements: usize,
    /// Arrays that lie in memory which all members of a host share.
    pub(super) arena: Option<Timing>,
    pub(super) private: Option<Timing>,
    /// What the reads and writes alone took, straight in each other's memory.
    pub(super) limit_microseconds: Option<f64>,
}

/// The time of one call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Timing {
    /// The median over rounds of the mean over members.
    pub(super) microseconds: f64,
    pub(super) least_microseconds: f64,
    pub(super) most_microseconds: f64,
    pub(super) algorithm_gigabytes_per_second: f64,
    pub(super) bus_gigabytes_per_second: f64,
    pub(super) rounds: usize,
    pub(super) calls_per_round: usize,
    /// How many elements of all members were not what they must be; `None` if nobody looked.
    pub(super) wrong: Option<u64>,
}

/// Another library, or why there is nothing of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PeerReport {
    pub(super) name: String,
    /// Library and version.
    pub(super) what: Option<String>,
    pub(super) absent: Option<String>,
    pub(super) rows: Vec<PeerRow>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PeerRow {
    pub(super) bytes: usize,
    pub(super) microseconds: f64,
}

/// What the bus carries of a byte of the array, as nccl-tests counts it: the factor from algorithm to bus bandwidth.
pub(super) fn bus_factor(verb: Verb, members: usize) -> f64 {
    let n = members as f64;
    match verb {
        Verb::AllReduce => 2.0 * (n - 1.0) / n,
        Verb::AllGather | Verb::ReduceScatter | Verb::AllToAll | Verb::Gather | Verb::Scatter => {
            (n - 1.0) / n
        }
        _ => 1.0,
    }
}

impl Report {
    /// Whether any result was not what it must be.
    pub(super) fn has_wrong(&self) -> bool {
        let timings = self.rows.iter().flat_map(|row| [&row.arena, &row.private]).flatten();
        timings.into_iter().any(|timing| timing.wrong.is_some_and(|count| count > 0))
    }

    /// Writes it to a descriptor that the process which started this one reads.
    pub(super) fn send(&self, descriptor: i32) -> Result<(), Failure> {
        let path = format!("/proc/self/fd/{descriptor}");
        let failure = |error| Failure::system(format!("write the result to {path}"), error);
        let mut file = File::options().write(true).open(&path).map_err(failure)?;
        file.write_all(self.to_json().as_bytes()).map_err(failure)
    }

    pub(super) fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        // Numbers, strings and lists always have a text.
        format!("{}\n", text.unwrap_or_default())
    }

    /// What stands above the lines.
    pub(super) fn heading(&self, has_arena: bool, has_private: bool) -> String {
        let mut call = self.verb.clone();
        if self.verb != Verb::Barrier.word() {
            call.push_str(&format!(" of {}", self.dtype.to_lowercase()));
        }
        call.push_str(&self.op.as_ref().map_or_else(String::new, |op| format!(" ({})", op.to_lowercase())));
        call.push_str(&self.root.map_or_else(String::new, |root| format!(" with root {root}")));
        let processes = uform::topology::counted(self.processes, "process");
        let hosts = uform::topology::counted(self.hosts, "host");
        let mut text = format!(
            "uform {} bench: {call}, {processes} on {hosts}, kernels {}\n\n",
            self.version, self.cpu_class
        );
        let (mut above, mut names) = (format!("{:26}", ""), format!("{:>12} {:>12} ", "bytes", "elements"));
        let last = if self.verb == Verb::Barrier.word() { "" } else { "private" };
        for (title, given) in [("arena", has_arena), (last, has_private)] {
            if given {
                above.push_str(&format!("  {title:-^38}"));
                names.push_str(&format!("  {:>12} {:>8} {:>8} {:>7}", "us", "algbw", "busbw", "wrong"));
            }
        }
        if self.verb != Verb::Barrier.word() {
            names.push_str(&format!("  {:>12}", "limit us"));
        }
        text.push_str(&format!("{}\n{}\n", above.trim_end(), names));
        text
    }

    /// What stands below the lines: the other libraries, and what the columns are.
    pub(super) fn ending(&self) -> String {
        let mut text = String::new();
        for peer in &self.peers {
            if let Some(reason) = &peer.absent {
                text.push_str(&format!("\n{}: not measured: {reason}\n", peer.name));
                continue;
            }
            let what = peer.what.as_deref().unwrap_or("version not told");
            text.push_str(&format!("\n{} ({what})\n", peer.name));
            text.push_str(&format!(
                "{:>12}  {:>12}  {:>14} {:>14}\n",
                "bytes", "us", "arena / it", "private / it"
            ));
            for row in &peer.rows {
                let ours = self.rows.iter().find(|own| own.bytes == row.bytes);
                let ratio = |timing: Option<&Timing>| {
                    let ratio = timing.map(|timing| timing.microseconds / row.microseconds);
                    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
                };
                text.push_str(&format!(
                    "{:>12}  {:>12}  {:>14} {:>14}\n",
                    row.bytes,
                    number(row.microseconds),
                    ratio(ours.and_then(|own| own.arena.as_ref())),
                    ratio(ours.and_then(|own| own.private.as_ref()))
                ));
            }
        }
        if self.verb != Verb::Barrier.word() {
            text.push_str("\nalgbw and busbw in GB/s (10^9 bytes), as nccl-tests defines them\n");
        }
        text
    }
}

impl Row {
    /// The line of a table.
    pub(super) fn line(&self, has_arena: bool, has_private: bool) -> String {
        let mut text = format!("{:>12} {:>12} ", self.bytes, self.elements);
        for (timing, given) in [(&self.arena, has_arena), (&self.private, has_private)] {
            match timing {
                _ if !given => {}
                None => text.push_str(&format!("  {:>12} {:>8} {:>8} {:>7}", "-", "-", "-", "-")),
                Some(timing) => {
                    let wrong = timing.wrong.map_or_else(|| "-".to_owned(), |count| count.to_string());
                    let bandwidth = |value: f64| {
                        if self.bytes == 0 { "-".to_owned() } else { format!("{value:.2}") }
                    };
                    text.push_str(&format!(
                        "  {:>12} {:>8} {:>8} {wrong:>7}",
                        number(timing.microseconds),
                        bandwidth(timing.algorithm_gigabytes_per_second),
                        bandwidth(timing.bus_gigabytes_per_second)
                    ));
                }
            }
        }
        if self.bytes > 0 {
            let limit = self.limit_microseconds.map_or_else(|| "-".to_owned(), number);
            text.push_str(&format!("  {limit:>12}"));
        }
        text.push('\n');
        text
    }
}

/// Microseconds with as many digits as mean something.
fn number(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A number of bytes as a size that is easy to read.
pub(super) fn shown(bytes: usize) -> String {
    let text = size(bytes as u64);
    text.replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_those_of_nccl_tests() {
        let factors = |members| {
            [
                Verb::AllReduce,
                Verb::AllGather,
                Verb::ReduceScatter,
                Verb::AllToAll,
                Verb::Broadcast,
                Verb::Reduce,
            ]
            .map(|verb| bus_factor(verb, members))
        };
        assert_eq!(factors(2), [1.0, 0.5, 0.5, 0.5, 1.0, 1.0]);
        assert_eq!(factors(4), [1.5, 0.75, 0.75, 0.75, 1.0, 1.0]);
        assert_eq!(factors(1), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    }
}
