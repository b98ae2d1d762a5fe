"""Start a run on other machines, through a batch system. Nothing in this folder imports torch.

``site.py``: the site profile, one YAML file about the target machines; read it first.
``slurm.py``: the sbatch scripts; ``slurm_commands.py``: sbatch, squeue, scancel.
``trainjob.py``: a TrainJob of Kubeflow Trainer for Kubernetes; ``sky.py``: a task of SkyPilot.
``torchrun.py``: the shell of a node in both.
``submitted.py``: the record of a submitted job in its run folder.
"""
