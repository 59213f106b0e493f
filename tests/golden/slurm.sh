#!/bin/bash
#SBATCH --job-name='run 1'
#SBATCH --chdir=/home/me
#SBATCH --output='/shared/run 1/slurm-%j.log'
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --ntasks=8
#SBATCH --gpus-per-task=1
#SBATCH --time=2:00:00
#SBATCH --partition=gpu

/env/bin/python -m syrtos run --on slurm --run-dir '/shared/run 1' --track mlflow train.py --epochs 3 &
launcher=$!
requeue=
trap 'requeue=1; kill -USR1 $launcher' USR1
trap 'kill -TERM $launcher' TERM
wait $launcher; code=$?
while kill -0 $launcher 2>/dev/null; do wait $launcher; code=$?; done
# 75: its state is saved, and the same job goes on from it.
if [ "$code" = 75 ] && [ -n "$requeue" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
