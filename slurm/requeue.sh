#!/bin/bash
# A job that saves before it is ended, and goes on later; see slurm/README.md.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.txt
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before the time limit every task gets SIGUSR1.
#SBATCH --signal=USR1@120

set -euo pipefail

# A folder that all nodes see. The processes meet in it and leave nothing there.
export UFORM_DIRECTORY="${UFORM_DIRECTORY:-$SLURM_SUBMIT_DIR/.uform}"
mkdir -p -m 700 "$UFORM_DIRECTORY"

# From Slurm 22.05 on, srun takes this from its own variable alone.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# On SIGUSR1 or SIGTERM the program saves a checkpoint and ends with 75. A task that fails ends the others by
# itself; --wait ends what is left two minutes later.
code=0
srun --kill-on-bad-exit=0 --wait=120 python train.py || code=$?
if [ "$code" = 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
