//! `uform doctor`: whether a run would work from here, and what stands in its way.

mod directory;
mod facts;
mod findings;
mod look;
mod program;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use uform::MeshOptions;

use self::facts::Facts;
use self::findings::{Finding, Level, judge};
use crate::Failure;

/// Looks at this process's launcher, host and directory, and tells what stands in the way of a run.
///
/// Each line is one finding: ok, warn or fail, what was found, and the remedy where there is one. Started as the run
/// would be (`srun uform doctor`, `mpirun uform doctor`), each process looks for itself. Whether the processes
/// reach each other is what `uform topology` shows.
///
/// The exit code is 0 if a run would work, 1 if a finding says that it would not, 2 for wrong arguments.
#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The directory to meet in [default: as a run would choose it]
    #[arg(short, long, value_name = "D")]
    directory: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn execute(options: &Options) -> Result<i32, Failure> {
    let given = MeshOptions { directory: options.directory.clone(), ..MeshOptions::default() };
    let facts = Facts::gather(&given);
    let findings = judge(&facts);
    let usable = findings.iter().all(|finding| finding.level != Level::Fail);
    crate::print(&if options.json { as_json(&findings, usable) } else { as_text(&findings) })?;
    Ok(i32::from(!usable))
}

fn as_json(findings: &[Finding], usable: bool) -> String {
    format!("{:#}\n", json!({ "usable": usable, "findings": findings }))
}

fn as_text(findings: &[Finding]) -> String {
    let lines = findings.iter().map(|finding| {
        let remedy = finding.remedy.as_ref().map(|remedy| format!(": {remedy}")).unwrap_or_default();
        format!("{:<5} {:<11} {}{remedy}\n", finding.level.word(), finding.area, finding.text)
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_and_one_object() {
        let findings = [
            Finding::ok("cores", "2"),
            Finding::fail("directory", "/d is on tmpfs", "name another by UFORM_DIRECTORY"),
        ];
        let text = as_text(&findings);
        assert_eq!(
            text,
            "ok    cores       2\nfail  directory   /d is on tmpfs: name another by UFORM_DIRECTORY\n"
        );
        let object: serde_json::Value = serde_json::from_str(&as_json(&findings, false)).expect("one object");
        assert_eq!(object["findings"][1]["level"], "fail");
        assert_eq!(object["usable"], false);
    }
}
