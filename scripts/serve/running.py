"""A server `ane serve` in a process of its own, for scripts: started with Server(...), ended by stop()."""
import os
import re
import signal
import subprocess


class Server:
    def __init__(self, command, model, *options):
        self.process = subprocess.Popen([command, "serve", model, "--port", "0", "--quiet", *options], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"://([^:/]+):(\d+)", line)
        if not found:
            raise SystemExit("the server did not start: %r" % line)
        self.host, self.port = found.group(1), int(found.group(2))
        self.url = "http://%s:%d" % (self.host, self.port)

    def resident(self):
        """Resident memory in KiB."""
        with open("/proc/%d/status" % self.process.pid) as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))

    def files(self):
        """Open file descriptors."""
        return len(os.listdir("/proc/%d/fd" % self.process.pid))

    def pause(self, on):
        """Halts the process, or lets it go on."""
        self.process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def stop(self):
        """Ends it by SIGTERM. Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)
