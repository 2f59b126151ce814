"""The sandbox where bubblewrap is not installed: the same file tree, made with `unshare`, `mount` and `pivot_root`.

No lesson opens this module.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from course_tools.grading.sandbox import mounts

_TREE = """
set -e
PATH=$PATH:/usr/sbin:/sbin
mount -n -t tmpfs -o mode=755,size=16m tmpfs /mnt  # any folder that everybody has; only this namespace sees it
cd /mnt
show() {{ # source, target, options: bind a path there
    if [ -d "$1" ]; then mkdir -p ".$2"; else mkdir -p ".$(dirname "$2")"; touch ".$2"; fi
    mount -n --bind "$1" ".$2"
    [ -z "$3" ] || mount -n -o "remount,bind,$3" ".$2"
}}
mkdir -p proc dev tmp old
mount -n -t proc proc proc
mount -n -t tmpfs -o mode=755,size=64k tmpfs dev
for device in null zero full random urandom; do show /dev/$device /dev/$device ""; done
mkdir -p dev/shm && mount -n -t tmpfs -o mode=1777,size={size} tmpfs dev/shm
ln -s /proc/self/fd dev/fd
mount -n -t tmpfs -o mode=1777,size={size} tmpfs tmp
{binds}
{links}
mkdir -p .{work} .{home}/matplotlib && chmod 1777 .{work} .{home} .{home}/matplotlib
show {shared} {kernel} ""
{masks}
{caches}
ip link set lo up
pivot_root . old
cd /
umount -n -l /old
rmdir /old
mount -n -o remount,bind,ro /
cd {work}
exec setpriv {user} --pdeathsig KILL --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def unshare_command(shared: Path, memory_bytes: int, uid: int = 0) -> list[str]:
    """The command line in front of the kernel's; what follows it becomes the script's `$@`.

    Args:
        shared: becomes the kernel's connection folder.
        memory_bytes: size of each file system in memory.
        uid: for a grader that is root, the user as whom the kernel runs, so that its processes are counted apart.
    """
    quoted = shlex.quote
    folders = [*mounts.read_only(), *mounts.root_folders()]
    caches = ((path, Path(mounts.HOME, "matplotlib", path.name)) for path in mounts.font_caches())
    script = _TREE.format(
        binds="\n".join(f"show {quoted(str(p))} {quoted(str(p))} ro" for p in folders),
        links="\n".join(f"ln -s {quoted(target)} .{quoted(str(link))}" for target, link in mounts.root_links()),
        masks="\n".join(f"mount -n -t tmpfs -o ro,size=4k tmpfs .{quoted(str(p))}" for p in mounts.masked()),
        caches="\n".join(f"show {quoted(str(source))} {quoted(str(target))} ro" for source, target in caches),
        size=memory_bytes,
        work=mounts.WORK_FOLDER,
        home=mounts.HOME,
        shared=quoted(str(shared)),
        kernel=mounts.KERNEL_FOLDER,
        user=f"--reuid {uid} --regid {uid} --clear-groups" if uid else "",
    )
    spaces = [] if uid else ["--user", "--map-root-user"]
    spaces += ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *spaces, "/bin/bash", "-c", script, "sandbox"]
