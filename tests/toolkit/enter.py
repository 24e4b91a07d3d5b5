"""Make this process a host like SageMaker's, and run a command as SageMaker's containers do. Needs root.

    unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \\
        python enter.py NETWORK_FD NAME ADDRESS FOLDER HOSTS_FILE SSH_DIR KEPT -- COMMAND…

A host has its own network, name, processes and mounts. FOLDER is its /opt/ml. The toolkit writes to /tmp, /run and
/etc/environment, so each host has its own. Each host has its own /dev/shm too, because MPI names shared memory by host
and process number, and hosts of other jobs have the same names and process numbers. A host's files for sshd are like
those of AWS's image. KEPT names folders, separated by colons, that stay visible at their paths.
"""

import os
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT / "code")

from headrace.backends.local import namespaces  # noqa: E402
from headrace.linux import syscalls  # noqa: E402

SSHD_CONFIG = """\
HostKey /etc/ssh/key
AuthorizedKeysFile /etc/ssh/key.pub
PermitRootLogin yes
StrictModes no
UsePAM yes
"""
SSH_CONFIG = """\
Host *
  IdentityFile /etc/ssh/key
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""
PAM = "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_env.so\n"
"""PAM's rules for sshd. With them, MPI daemons get the variables that the toolkit writes to /etc/environment."""


def main() -> None:
    network, name, address, folder, hosts_file, ssh_dir, kept = sys.argv[1:8]
    socket.sethostname(name)
    namespaces.plug_in(int(network), name, address)
    os.close(int(network))
    key = Path(ssh_dir, "key").read_bytes(), Path(ssh_dir, "key.pub").read_bytes()
    private_tmp([Path(each) for each in kept.split(":")])
    for folder_of_its_own in ("/run", "/etc/ssh", "/dev/shm"):
        syscalls.mount("tmpfs", folder_of_its_own, "tmpfs", 0)
    for path, content in {
        "/etc/ssh/sshd_config": SSHD_CONFIG.encode(),
        "/etc/ssh/ssh_config": SSH_CONFIG.encode(),
        "/etc/ssh/key": key[0],
        "/etc/ssh/key.pub": key[1],
        "/run/pam": PAM.encode(),
        "/run/environment": b"",
    }.items():
        Path(path).write_bytes(content)
    os.chmod("/etc/ssh/key", 0o600)
    Path("/run/sshd").mkdir(mode=0o755)
    home = Path("/run/home/.ssh")
    home.mkdir(parents=True)
    (home / "id_ed25519").symlink_to("/etc/ssh/key")
    os.environ["HOME"] = "/run/home"
    syscalls.mount("/run/pam", "/etc/pam.d/sshd", "none", syscalls.MS_BIND)
    syscalls.mount("/run/environment", "/etc/environment", "none", syscalls.MS_BIND)
    syscalls.mount(hosts_file, "/etc/hosts", "none", syscalls.MS_BIND)
    namespaces.mount_base_dir(Path(folder))
    os.chdir("/")
    command = sys.argv[9:]
    os.execvp(command[0], command)


def private_tmp(kept: list[Path]) -> None:
    """Mount a new /tmp that only this host sees. The folders in `kept` are in the new /tmp too, at the same paths."""
    inside = {path: os.open(path, os.O_RDONLY) for path in kept if path.is_relative_to("/tmp")}
    syscalls.mount("tmpfs", "/tmp", "tmpfs", 0)
    for path, descriptor in inside.items():
        path.mkdir(parents=True, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{descriptor}", str(path), "none", syscalls.MS_BIND | syscalls.MS_REC)
        os.close(descriptor)


if __name__ == "__main__":
    main()
