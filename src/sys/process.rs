//! Which process this is, and whether another one still lives.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// The kernel's boot identity, the same for all containers of one machine.
///
/// # Errors
/// `Io` if `/proc` is not mounted.
pub fn boot_id() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(|source| Error::io(path, "read", source))?;
    Ok(text.trim().to_owned())
}

/// The host name, for messages only.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// This process's number.
#[must_use]
pub fn pid() -> u32 {
    crate::sys::fork::own_pid()
}

/// The namespace that this process's number belongs to; empty where `/proc` does not tell.
#[must_use]
pub fn pid_namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid");
    link.map(|target| target.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The state of a process and what follows it in its line of `/proc`, by one read: many processes are looked at often.
fn state_on(pid: u32) -> Option<String> {
    let mut file = File::open(format!("/proc/{pid}/stat")).ok()?;
    // The fields that are asked for lie within 600 bytes: a name of up to 64, and numbers of up to 20 digits.
    let mut line = [0; 1024];
    let count = file.read(&mut line).ok()?;
    // The command in parentheses may hold spaces, parentheses, and half a letter: the last one ends it.
    let end = line.get(..count)?.iter().rposition(|byte| *byte == b')')?;
    String::from_utf8(line.get(end + 1..count)?.to_vec()).ok()
}

/// Whether a signal or a debugger has stopped the process with this number.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    state_on(pid).is_some_and(|state| state.trim_start().starts_with(['T', 't']))
}

/// When a process started, in clock ticks after boot; `None` if there is no such process or it is a zombie.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    let rest = state_on(pid)?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    // Field 22 of the line; the state is field 3.
    fields.nth(18)?.parse().ok()
}

/// Whether the process with this number and start still runs on this machine, in this process's namespace.
#[must_use]
pub fn is_alive(pid: u32, start: u64) -> bool {
    start_ticks(pid) == Some(start)
}

/// The command line, arguments joined by spaces, cut to 200 characters.
#[must_use]
pub fn command() -> String {
    let arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    arguments.collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_another_start_does_not() {
        let start = start_ticks(pid()).expect("/proc is mounted");
        assert!(is_alive(pid(), start));
        assert!(!is_alive(pid(), start + 1));
        assert_eq!(start_ticks(u32::MAX), None);
        assert!(!is_stopped(pid()) && !is_stopped(u32::MAX));
        assert!(!boot_id().expect("/proc is mounted").is_empty());
    }
}
