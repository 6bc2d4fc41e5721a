//! What is wrong in a batch script, line by line; pure.

use super::script::{Command, Script, is_time};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remark {
    pub(super) line: usize,
    /// Whether the run would not work; else it works, and not as it should.
    pub(super) fails: bool,
    /// What is wrong, and what to do.
    pub(super) text: String,
}

impl std::fmt::Display for Remark {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let level = if self.fails { "fail" } else { "warn" };
        write!(formatter, "{}: {level}: {}", self.line, self.text)
    }
}

/// Commands that set up and start nothing of the run.
const SETTING_UP: [&str; 38] = [
    "",
    "export",
    "set",
    "cd",
    "mkdir",
    "echo",
    "module",
    "ml",
    "source",
    ".",
    "conda",
    "mamba",
    "eval",
    "ulimit",
    "date",
    "hostname",
    "ls",
    "cat",
    "cp",
    "mv",
    "rm",
    "rsync",
    "tar",
    "trap",
    "wait",
    "exit",
    "fi",
    "else",
    "done",
    "for",
    "while",
    "[",
    "[[",
    "test",
    "printf",
    "pip",
    "sleep",
    "nvidia-smi",
];

/// Everything that is wrong in a script, in the order of its lines.
pub(super) fn check(text: &str) -> Vec<Remark> {
    let script = Script::read(text);
    let mut found = Remarks(Vec::new());
    form(&script, &mut found);
    resources(&script, &mut found);
    starts(&script, &mut found);
    gpus(&script, &mut found);
    directory(&script, &mut found);
    signals(&script, &mut found);
    let Remarks(mut found) = found;
    found.sort_by_key(|remark| remark.line);
    found
}

struct Remarks(Vec<Remark>);

impl Remarks {
    fn fail(&mut self, line: usize, text: impl Into<String>) {
        self.0.push(Remark { line, fails: true, text: text.into() });
    }

    fn warn(&mut self, line: usize, text: impl Into<String>) {
        self.0.push(Remark { line, fails: false, text: text.into() });
    }
}

impl Script {
    fn nodes(&self) -> u64 {
        self.number("nodes").unwrap_or(1)
    }

    fn tasks_per_node(&self) -> u64 {
        let given = self.number("ntasks-per-node");
        given.or_else(|| Some(self.number("ntasks")?.div_ceil(self.nodes().max(1)))).unwrap_or(1)
    }

    fn tasks(&self) -> u64 {
        self.number("ntasks").unwrap_or_else(|| self.nodes().saturating_mul(self.tasks_per_node()))
    }

    /// The line that asks for several tasks or nodes.
    fn size_line(&self) -> usize {
        ["ntasks", "ntasks-per-node", "nodes"].iter().find_map(|name| self.line(name)).unwrap_or(1)
    }

    fn steps(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter().filter(|command| command.program() == "srun")
    }
}

/// What starts processes of a run by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Starter {
    Srun,
    Mpirun,
    Torchrun,
    Launch,
}

fn starter(command: &Command) -> Option<Starter> {
    let second = command.arguments().first().map(String::as_str);
    match command.program() {
        "srun" => Some(Starter::Srun),
        "mpirun" | "mpiexec" | "mpiexec.hydra" | "prterun" => Some(Starter::Mpirun),
        "torchrun" => Some(Starter::Torchrun),
        "uform" if second == Some("launch") => Some(Starter::Launch),
        name if name.starts_with("python") && command.has("torch.distributed.") => Some(Starter::Torchrun),
        _ => None,
    }
}

/// What sbatch itself refuses or skips.
fn form(script: &Script, found: &mut Remarks) {
    if !script.first_line.starts_with("#!") {
        found
            .fail(1, "sbatch refuses a script whose first line names no interpreter: begin with #!/bin/bash");
    }
    if let Some(line) = script.carriage_return {
        found.fail(
            line,
            "sbatch refuses lines that end in a carriage return: write the file with plain line ends",
        );
    }
    for line in &script.late_options {
        found.fail(*line, "sbatch reads no #SBATCH after the first command: move it up");
    }
    if let Some((value, line)) = script.options.get("time")
        && !is_time(value)
    {
        found.fail(
            *line,
            format!("`{value}` is no time limit: write minutes, hours:minutes:seconds or days-hours"),
        );
    }
}

fn resources(script: &Script, found: &mut Remarks) {
    if let (Some(tasks), Some(per_node), Some(nodes)) =
        (script.number("ntasks"), script.number("ntasks-per-node"), script.number("nodes"))
        && tasks != per_node.saturating_mul(nodes)
    {
        let text = format!(
            "--ntasks={tasks} is not --nodes={nodes} times --ntasks-per-node={per_node}: Slurm takes --ntasks and spreads \
             them as it likes; leave --ntasks out"
        );
        found.warn(script.line("ntasks").unwrap_or(1), text);
    }
    let passed = script.commands.iter().any(|command| command.has("SRUN_CPUS_PER_TASK"));
    if script.option("cpus-per-task").is_some() && !passed {
        for step in script.steps().filter(|step| !step.options().contains_key("cpus-per-task")) {
            found.warn(
                step.line,
                "srun takes no --cpus-per-task from sbatch since Slurm 22.05, so that each task gets one core: export \
                 SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK, or repeat it here",
            );
        }
    }
}

/// Whether the processes that were asked for are started, and only once.
fn starts(script: &Script, found: &mut Remarks) {
    let (tasks, nodes) = (script.tasks(), script.nodes());
    let starters = script.commands.iter().filter_map(|command| Some((starter(command)?, command)));
    let starters = starters.collect::<Vec<_>>();
    if starters.is_empty() && tasks > 1 {
        let runs = script.commands.iter().find(|command| !SETTING_UP.contains(&command.program()));
        let line = runs.map_or_else(|| script.size_line(), |command| command.line);
        found.fail(
            line,
            format!("{tasks} tasks are asked for, and nothing starts them: this runs once, on the first node; put srun before it"),
        );
    }
    for (kind, command) in starters {
        match kind {
            Starter::Srun => step(script, command, found),
            Starter::Torchrun if nodes > 1 => found.fail(
                command.line,
                format!("torchrun runs on the first of {nodes} nodes alone: put `srun --ntasks-per-node=1` before it"),
            ),
            Starter::Launch if nodes > 1 => found.fail(
                command.line,
                format!("uform launch runs on the first of {nodes} nodes alone: put `srun --ntasks-per-node=1` before it"),
            ),
            _ => {}
        }
    }
}

/// What srun starts.
fn step(script: &Script, command: &Command, found: &mut Remarks) {
    let (options, inner) = (command.options(), command.inner());
    let number = |name: &str| options.get(name).and_then(|value| value.parse::<u64>().ok());
    let nodes = number("nodes").unwrap_or_else(|| script.nodes());
    let per_node = number("ntasks-per-node").unwrap_or_else(|| match number("ntasks") {
        Some(tasks) => tasks.div_ceil(nodes.max(1)),
        None => script.tasks_per_node(),
    });
    let line = command.line;
    match starter(&inner) {
        Some(Starter::Torchrun) => {
            if per_node > 1 {
                found.fail(line, format!(
                    "srun starts {per_node} torchruns on each node, and each of them starts processes: take \
                     --ntasks-per-node=1 and leave the number to --nproc-per-node"
                ));
            }
            if nodes > 1 && inner.has("--standalone") {
                found.fail(line, "torchrun --standalone makes a run of its own on each node: give --nnodes, --rdzv-id and --rdzv-endpoint");
            } else if nodes > 1 && !inner.has("--nnodes") {
                found.fail(line, format!("torchrun is not told of the {nodes} nodes: give --nnodes, --rdzv-id and --rdzv-endpoint"));
            }
        }
        Some(Starter::Launch) if per_node > 1 => found.warn(line, format!(
            "srun starts {per_node} times uform launch on each node, and each of them starts processes: take \
             --ntasks-per-node=1 and leave the number to --processes"
        )),
        Some(Starter::Mpirun) if nodes.saturating_mul(per_node) > 1 => found.fail(line, format!(
            "srun starts mpirun {} times, each for a run of its own: take one of them, `srun --mpi=pmix` or mpirun",
            nodes.saturating_mul(per_node)
        )),
        _ => {}
    }
}

fn gpus(script: &Script, found: &mut Remarks) {
    let unbound = |command: &Command| {
        let options = command.options();
        let bind = ["gpu-bind", "tres-bind"].iter().find_map(|name| options.get(*name));
        (
            bind.is_some_and(|bind| bind.ends_with("none")),
            bind.cloned(),
            options.contains_key("gpus-per-task"),
        )
    };
    let bound_in_script = script.option("gpu-bind").or_else(|| script.option("tres-bind"));
    let narrows = "so that no task reads another's GPU memory: ask by --gpus-per-node, or, where the nodes confine \
         devices, add --gpu-bind=none";
    let mut asked =
        script.line("gpus-per-task").filter(|_| !bound_in_script.is_some_and(|bind| bind.ends_with("none")));
    for step in script.steps() {
        let (free, bind, own) = unbound(step);
        match bind {
            _ if free => asked = None,
            Some(bind) => found.warn(step.line, format!("GPUs are bound by `{bind}`, {narrows}")),
            None if own => found
                .warn(step.line, format!("--gpus-per-task shows each task its own GPUs alone, {narrows}")),
            None => {}
        }
    }
    if let Some(line) = asked {
        found.warn(line, format!("--gpus-per-task shows each task its own GPUs alone, {narrows}"));
    }
    for command in &script.commands {
        if command.words.iter().any(|word| word.contains("_VISIBLE_DEVICES=$SLURM_LOCALID")) {
            found.fail(
                command.line,
                "a task's local index is no number of a GPU that it sees: remove this, the library divides what is visible",
            );
        }
    }
}

/// Whether processes on several nodes can meet.
fn directory(script: &Script, found: &mut Remarks) {
    const NAME: &str = "UFORM_DIRECTORY";
    if script.nodes() < 2 {
        return;
    }
    let set = script.commands.iter().find_map(|command| {
        let value = command.words.iter().find_map(|word| word.split_once('='))?;
        (value.0 == NAME).then_some((command.line, value.1))
    });
    let named = |command: &Command| {
        command.has(NAME) || command.has("--directory") || command.has(&format!("${NAME}"))
    };
    match set {
        Some((line, path)) => {
            let local = ["/tmp", "/dev/shm", "/var/tmp", "$TMPDIR", "${TMPDIR", "$SLURM_TMPDIR", "/run"];
            if local.iter().any(|start| path.starts_with(start)) {
                found.fail(
                    line,
                    format!(
                        "{NAME} is {path}, which each node has for itself: name a folder that all nodes see"
                    ),
                );
            }
        }
        None if !script.commands.iter().any(named) => {
            if let Some(step) = script.steps().next() {
                found.warn(step.line, format!(
                    "nothing says where processes of {} nodes meet: export {NAME}, a folder that all nodes see, unless the \
                     program passes `directory`",
                    script.nodes()
                ));
            }
        }
        None => {}
    }
    let exported = script.option("export").is_some_and(|what| what == "NONE" || what == "NIL");
    if exported && set.is_some() && !script.steps().any(|step| step.options().contains_key("export")) {
        found.fail(
            script.line("export").unwrap_or(1),
            format!(
                "--export=NONE holds for srun, too, so that no task sees {NAME}: add --export=ALL to srun"
            ),
        );
    }
}

/// Signals, traps and requeueing, which go together or not at all.
fn signals(script: &Script, found: &mut Remarks) {
    let traps = script.commands.iter().filter(|command| command.program() == "trap").collect::<Vec<_>>();
    let requeues =
        script.commands.iter().find(|command| command.program() == "scontrol" && command.has("requeue"));
    if let Some((value, line)) = script.options.get("signal") {
        let (target, rest) = value.split_once(':').unwrap_or(("", value));
        let name = rest.split('@').next().unwrap_or(rest).trim_start_matches("SIG");
        let trapped =
            traps.iter().find(|trap| trap.words.iter().any(|word| word.trim_start_matches("SIG") == name));
        match (target.contains('B'), trapped) {
            (true, None) => found.fail(*line, format!(
                "B: sends {name} to the script alone, which has no trap for it and ends: leave B: out, so that the tasks get it"
            )),
            (false, Some(trap)) => found.warn(trap.line, format!(
                "this trap never runs: without B: in --signal (line {line}) the tasks get {name}, and the script does not"
            )),
            _ => {}
        }
        if script.option("requeue").is_none() && requeues.is_none() {
            found.warn(*line, "the tasks are warned before the end, and nothing starts the job again: add --requeue, and scontrol requeue after srun");
        }
    }
    // bash runs a trap only after the command that it waits for.
    if let (Some(trap), Some(step)) = (traps.iter().find(|trap| !trap.has("EXIT")), script.steps().next())
        && !script.steps().any(|step| step.in_background)
    {
        found.warn(
            step.line,
            format!(
                "bash runs the trap of line {} only after srun has ended: start srun with & and wait for it",
                trap.line
            ),
        );
    }
    if let Some(line) = script.line("requeue") {
        if script.option("open-mode") != Some("append") {
            found.warn(line, "a job that is requeued overwrites its output: add --open-mode=append");
        }
        if script.option("signal").is_none() {
            found.warn(line, "without --signal the tasks have KillWait, 30 s by default, between SIGTERM and the end: add --signal=USR1@120");
        }
    }
    if let (Some(line), Some(requeue)) = (script.line("no-requeue"), requeues) {
        found.fail(requeue.line, format!("--no-requeue of line {line} forbids this: take --requeue"));
    } else if let (None, Some(requeue)) = (script.option("requeue"), requeues) {
        found
            .warn(requeue.line, "whether this is allowed depends on the cluster's JobRequeue: add --requeue");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n";
    const MEET: &str = "export UFORM_DIRECTORY=/shared/meet\n";

    /// One remark on this line, which contains this.
    fn one(text: &str, line: usize, fails: bool, part: &str) {
        let found = check(text);
        assert_eq!(found.len(), 1, "{text}\n{found:#?}");
        assert!(found[0].line == line && found[0].fails == fails, "{text}\n{found:#?}");
        assert!(found[0].text.contains(part), "{found:#?}");
    }

    #[test]
    fn what_is_right_has_no_remark() {
        for text in [
            format!("{HEAD}{MEET}srun python train.py\n"),
            "#!/bin/bash\npython train.py\n".to_owned(),
            "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks=1\nuform launch --processes 4 train.py\n".to_owned(),
            "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1\nexport UFORM_DIRECTORY=/s\nsrun torchrun --nnodes=2 --nproc-per-node=4 t.py\n".to_owned(),
            format!("{HEAD}{MEET}mpirun -n 8 python train.py\n"),
            format!("{HEAD}{MEET}srun --ntasks-per-node=1 uform launch -n 4 t.py\n"),
            format!("{HEAD}# a comment with mpirun\nmodule load x\nsrun python train.py --directory /shared\n"),
        ] {
            assert_eq!(check(&text), [], "{text}");
        }
    }

    #[test]
    fn what_sbatch_refuses_or_skips() {
        one("srun x\n", 1, true, "#!/bin/bash");
        one("#!/bin/bash\r\nsrun x\r\n", 1, true, "carriage return");
        one("#!/bin/bash\nsrun x\n#SBATCH --nodes=2\n", 3, true, "move it up");
        one("#!/bin/bash\n#SBATCH --time=1h\nsrun x\n", 2, true, "`1h` is no time limit");
    }

    #[test]
    fn tasks_that_nothing_starts() {
        one(&format!("{HEAD}{MEET}cd /work\npython train.py\n"), 6, true, "8 tasks are asked for");
        one("#!/bin/bash\n#SBATCH -n 4\n./prog\n", 3, true, "put srun before it");
        one(&format!("{HEAD}{MEET}uform launch --processes 4 t.py\n"), 5, true, "first of 2 nodes");
        one(&format!("{HEAD}{MEET}torchrun t.py\n"), 5, true, "srun --ntasks-per-node=1");
    }

    #[test]
    fn tasks_that_are_started_twice() {
        one(&format!("{HEAD}{MEET}srun torchrun --nnodes 2 t.py\n"), 5, true, "4 torchruns on each node");
        one(
            &format!("{HEAD}{MEET}srun -N2 --ntasks-per-node=1 python -m torch.distributed.run t.py\n"),
            5,
            true,
            "--nnodes",
        );
        one(
            &format!("{HEAD}{MEET}srun --ntasks-per-node=1 torchrun --standalone t.py\n"),
            5,
            true,
            "--standalone",
        );
        one(&format!("{HEAD}{MEET}srun uform launch -n 4 t.py\n"), 5, false, "4 times uform launch");
        one(&format!("{HEAD}{MEET}srun mpirun python t.py\n"), 5, true, "mpirun 8 times");
    }

    #[test]
    fn resources_that_do_not_reach_the_tasks() {
        one(&format!("{HEAD}#SBATCH --ntasks=6\n{MEET}srun x\n"), 4, false, "--ntasks=6 is not");
        one(&format!("{HEAD}#SBATCH -c 8\n{MEET}srun x\n"), 6, false, "SRUN_CPUS_PER_TASK");
        assert_eq!(check(&format!("{HEAD}#SBATCH -c 8\n{MEET}srun --cpus-per-task=8 x\n")), []);
        one(&format!("{HEAD}#SBATCH --gpus-per-task=1\n{MEET}srun x\n"), 4, false, "--gpu-bind=none");
        one(&format!("{HEAD}{MEET}srun --gpus-per-task=1 x\n"), 5, false, "--gpu-bind=none");
        one(&format!("{HEAD}{MEET}srun --gpu-bind=closest x\n"), 5, false, "bound by `closest`");
        assert_eq!(check(&format!("{HEAD}#SBATCH --gpus-per-task=1\n{MEET}srun --gpu-bind=none x\n")), []);
        assert_eq!(check(&format!("{HEAD}{MEET}srun --gpus-per-task=1 --tres-bind=gres/gpu:none x\n")), []);
        one(
            &format!("{HEAD}{MEET}export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\nsrun x\n"),
            5,
            true,
            "local index",
        );
    }

    #[test]
    fn places_to_meet() {
        one(&format!("{HEAD}srun x\n"), 4, false, "export UFORM_DIRECTORY");
        one(&format!("{HEAD}export UFORM_DIRECTORY=/tmp/x\nsrun x\n"), 4, true, "each node has for itself");
        one(&format!("{HEAD}UFORM_DIRECTORY=$TMPDIR srun x\n"), 4, true, "each node has for itself");
        one(&format!("{HEAD}#SBATCH --export=NONE\n{MEET}srun x\n"), 4, true, "--export=ALL");
        assert_eq!(check("#!/bin/bash\n#SBATCH -n 4\nsrun x\n"), [], "one node needs no directory");
    }

    #[test]
    fn signals_traps_and_requeueing() {
        let head = format!("{HEAD}#SBATCH --requeue --open-mode=append --signal=");
        assert_eq!(check(&format!("{head}USR1@120\n{MEET}srun x\n")), []);
        one(&format!("{head}B:USR1@120\n{MEET}srun x\n"), 4, true, "no trap");
        one(
            &format!("{head}B:USR1@120\n{MEET}trap 'kill $child' USR1\nsrun x\n"),
            7,
            false,
            "with & and wait",
        );
        assert_eq!(
            check(&format!("{head}B:USR1@120\n{MEET}trap 'kill $child' SIGUSR1\nsrun x &\nwait\n")),
            []
        );
        one(&format!("{head}USR1@120\n{MEET}trap true USR1\nsrun x &\nwait\n"), 6, false, "never runs");
        one(
            &format!("{HEAD}#SBATCH --signal=USR1@120\n{MEET}srun x\n"),
            4,
            false,
            "nothing starts the job again",
        );
        one(
            &format!("{HEAD}#SBATCH --requeue --signal=USR1@9\n{MEET}srun x\n"),
            4,
            false,
            "--open-mode=append",
        );
        one(
            &format!("{HEAD}#SBATCH --requeue --open-mode=append\n{MEET}srun x\n"),
            4,
            false,
            "--signal=USR1@120",
        );
        let again = "srun x\nscontrol requeue $SLURM_JOB_ID\n";
        one(&format!("{HEAD}#SBATCH --no-requeue\n{MEET}{again}"), 7, true, "forbids this");
        one(&format!("{HEAD}{MEET}{again}"), 6, false, "JobRequeue");
    }
}
