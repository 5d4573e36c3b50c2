//! A cluster under test: the program as a user starts it, and the kubectl on PATH to talk to it.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Running, ended, heard, lines};

/// How long anything in a test may take before the test says what it waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A running `mullion up`, killed when dropped.
pub(crate) struct Cluster {
    child: Child,
    dir: TempDir,
    banner: String,
}

impl Cluster {
    /// Starts a cluster on a free port at a high speed and waits until it says that its nodes are ready.
    pub(crate) fn start(args: &[&str]) -> Cluster {
        Cluster::start_in(tempfile::tempdir().expect("a temporary directory"), args)
    }

    fn start_in(dir: TempDir, args: &[&str]) -> Cluster {
        require_kubectl();
        let child = Command::new(env!("CARGO_BIN_EXE_mullion"))
            .args(["up", "--wait=2m", "--port", "0", "--kubeconfig"])
            .arg(dir.path().join("kubeconfig"))
            .args(args)
            .env("XDG_STATE_HOME", dir.path().join("state"))
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples"))
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.path().join("stderr")).expect("a file for stderr"))
            .spawn()
            .expect("the program starts");
        // Whatever happens from here on, dropping it ends the process.
        let mut cluster = Cluster {
            child,
            dir,
            banner: String::new(),
        };
        let stdout = lines(cluster.child.stdout.take().expect("stdout is piped"));
        match heard(&stdout, |line| line.ends_with(" ready.")) {
            Ok(banner) => cluster.banner = banner.join("\n") + "\n",
            Err(banner) => panic!(
                "the cluster did not become ready\n{}\n{}",
                banner.join("\n"),
                cluster.stderr()
            ),
        }
        cluster
    }

    /// Kills the process without warning and starts another one in its place.
    pub(crate) fn kill_and_restart(mut self, args: &[&str]) -> Cluster {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process ends");
        let dir = std::mem::replace(
            &mut self.dir,
            tempfile::tempdir().expect("a temporary directory"),
        );
        drop(self);
        Cluster::start_in(dir, args)
    }

    /// What the program printed while starting.
    pub(crate) fn banner(&self) -> &str {
        &self.banner
    }

    /// Runs another command of the program on this machine.
    pub(crate) fn mullion(&self, args: &[&str]) -> Output {
        self.mullion_in(&[], args)
    }

    /// The same with more variables in its environment.
    pub(crate) fn mullion_in(&self, variables: &[(&str, &str)], args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_mullion"))
            .args(args)
            .envs(variables.iter().copied())
            .env("XDG_STATE_HOME", self.dir.path().join("state"))
            .current_dir(self.dir.path())
            .output()
            .expect("the program starts")
    }

    /// Where the kubeconfig is.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// A folder of the cluster's, where clients may keep what they remember.
    pub(crate) fn home(&self) -> &Path {
        self.dir.path()
    }

    /// Sends an interrupt and returns the exit code.
    #[cfg(unix)]
    pub(crate) fn interrupt(mut self) -> Option<i32> {
        let sent = Command::new("kill")
            .args(["-INT", &self.child.id().to_string()])
            .status()
            .expect("kill can be run");
        assert!(sent.success());
        self.child.wait().expect("the process ends").code()
    }

    /// Runs kubectl and returns its stdout; fails the test when kubectl fails.
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        let output = self.run("kubectl", args, "");
        assert!(
            output.status.success(),
            "kubectl {}:\n{}{}{}",
            args.join(" "),
            text(&output.stdout),
            text(&output.stderr),
            self.stderr()
        );
        text(&output.stdout)
    }

    /// Runs kubectl with a manifest on stdin.
    pub(crate) fn apply(&self, manifest: &str) -> String {
        let output = self.run("kubectl", &["apply", "-f", "-"], manifest);
        assert!(
            output.status.success(),
            "kubectl apply:\n{manifest}\n{}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout) + &text(&output.stderr)
    }

    /// Runs a kubectl that must fail and returns its stderr.
    pub(crate) fn refused(&self, args: &[&str], stdin: &str) -> String {
        let output = self.run("kubectl", args, stdin);
        assert!(
            !output.status.success(),
            "kubectl {} did not fail:\n{}",
            args.join(" "),
            text(&output.stdout)
        );
        text(&output.stderr)
    }

    /// `kubectl get ... -o json`.
    pub(crate) fn get(&self, args: &[&str]) -> Value {
        let mut all = vec!["get"];
        all.extend(args);
        all.extend(["-o", "json"]);
        serde_json::from_str(&self.kubectl(&all)).expect("kubectl prints JSON")
    }

    /// Asks kubectl again and again until its answer is as wanted: for what `kubectl wait` of 1.27 cannot express. A call takes long
    /// enough that asking needs no pause.
    pub(crate) fn until(&self, what: &str, args: &[&str], wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.kubectl(args);
            if wanted(&answer) {
                return answer;
            }
            assert!(
                Instant::now() < deadline,
                "{what} did not happen within {} s; kubectl {} says:\n{answer}",
                PATIENCE.as_secs(),
                args.join(" ")
            );
        }
    }

    /// Runs some kubectl, for as long as a test has patience.
    pub(crate) fn run(&self, program: &str, args: &[&str], stdin: &str) -> Output {
        ended(&mut self.client(program, args), stdin, PATIENCE)
    }

    /// Starts some kubectl that goes on by itself.
    pub(crate) fn spawn(&self, program: &str, args: &[&str]) -> Running {
        Running::start(&mut self.client(program, args))
    }

    fn client(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", self.dir.path())
            // An editor that changes something, for `kubectl edit`.
            .env("KUBE_EDITOR", "sed -i s/front/back/")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples"));
        command
    }

    /// What the program logged.
    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails with a sentence unless a kubectl of 1.27 or later is on PATH.
pub(crate) fn require_kubectl() {
    static VERSION: OnceLock<Result<(), String>> = OnceLock::new();
    let checked = VERSION.get_or_init(|| {
        let how = "put kubectl 1.27 or later on PATH, for instance from https://kubernetes.io/docs/tasks/tools/";
        let output = Command::new("kubectl").args(["version", "--client", "-o", "json"]).output();
        let output = output.map_err(|error| format!("these tests drive the cluster with kubectl, which cannot be run ({error}): {how}"))?;
        let version: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("kubectl version is not understood ({error}): {how}"))?;
        let minor = version["clientVersion"]["minor"].as_str().unwrap_or_default().trim_end_matches('+').parse::<u32>().unwrap_or(0);
        if minor < 27 { Err(format!("kubectl is 1.{minor}: {how}")) } else { Ok(()) }
    });
    if let Err(sentence) = checked {
        panic!("{sentence}");
    }
}
