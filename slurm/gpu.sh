#!/bin/bash
# Processes that share the GPUs of their node; see slurm/README.md.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=8
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.txt

set -euo pipefail

# A folder that all nodes see. The processes meet in it and leave nothing there.
export UFORM_DIRECTORY="${UFORM_DIRECTORY:-$SLURM_SUBMIT_DIR/.uform}"
mkdir -p -m 700 "$UFORM_DIRECTORY"

# From Slurm 22.05 on, srun takes this from its own variable alone.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# Each task sees all GPUs of the job on its node: the library divides them, and peers can read each
# other's memory.
srun --kill-on-bad-exit=1 python train.py
