//! A cluster of real parts on loopback: etcd and kube-apiserver, or the program's API server in their place, and whichever of
//! kube-controller-manager and kube-scheduler a test wants.

use std::{
    cell::RefCell,
    fs::File,
    path::PathBuf,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::installed::process::{Process, free_port};

/// How long anything may take before a test says what it waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// A running cluster.
pub(crate) struct Cluster {
    binaries: PathBuf,
    dir: TempDir,
    parts: RefCell<Vec<Part>>,
}

/// One of Kubernetes' programs, and how it was started.
struct Part {
    name: &'static str,
    flags: Vec<String>,
    process: Process,
    starts: usize,
}

/// Users that tests may be beside the administrator; they may do everything, too.
pub(crate) const USERS: [&str; 2] = ["first", "second"];

/// What the API server's audit log has: the writes of [`USERS`], and who makes and deletes pods.
const AUDIT: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: [first, second], verbs: [create, update, patch, delete, deletecollection]}
- {level: Metadata, verbs: [create, delete], resources: [{group: \"\", resources: [pods, pods/eviction]}]}
- {level: None}
";

/// The range that Services get their addresses from.
const SERVICES: &str = "172.20.0.0/16";

impl Cluster {
    /// Writes the keys, the authority of certificates, the users and their kubeconfigs, for an API server on this port.
    fn prepare(port: u16) -> Cluster {
        let cluster = Cluster {
            binaries: binaries(),
            dir: tempfile::tempdir().expect("a temporary directory"),
            parts: RefCell::default(),
        };
        let path = |name: &str| cluster.path(name);
        let key = rcgen::KeyPair::generate().expect("a key");
        std::fs::write(path("sa.key"), key.serialize_pem()).expect("a file");
        std::fs::write(path("sa.pub"), key.public_key_pem()).expect("a file");
        let authority = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&authority).expect("a certificate");
        std::fs::write(path("ca.key"), authority.serialize_pem()).expect("a file");
        std::fs::write(path("ca.crt"), certificate.pem()).expect("a file");
        let tokens = [
            "admin-token,admin,1,\"system:masters\"",
            "manager-token,system:kube-controller-manager,2,",
            "scheduler-token,system:kube-scheduler,3,",
            "first-token,first,4,\"system:masters\"",
            "second-token,second,5,\"system:masters\"",
        ];
        std::fs::write(path("tokens.csv"), tokens.join("\n")).expect("a file");
        std::fs::write(path("audit.yaml"), AUDIT).expect("a file");
        for user in ["admin", "manager", "scheduler"].into_iter().chain(USERS) {
            std::fs::write(path(user), kubeconfig(port, user)).expect("a file");
        }
        cluster
    }

    /// Starts the program's API server, and returns when it answers.
    pub(crate) fn start_with_our_api_server() -> Cluster {
        let port = free_port();
        let mut cluster = Cluster::prepare(port);
        let (written, tokens) = (cluster.path("written"), cluster.path("tokens.csv"));
        let public = cluster.path("sa.pub");
        let flags = [
            ("port", port.to_string()),
            ("kubeconfig", written),
            ("token-auth-file", tokens),
            ("service-account-key-file", public),
            ("service-cluster-ip-range", SERVICES.to_owned()),
            // kube-controller-manager makes the accounts, so that no plugin has to be left out.
            ("disable-admission-plugins", String::new()),
        ];
        let flags = flags.map(|(flag, value)| format!("--{flag}={value}"));
        let args = [vec!["apiserver".to_owned()], flags.to_vec()].concat();
        cluster.run_program("apiserver", program(), args);
        cluster.until("the API server answers", || cluster.answers());
        cluster
    }

    /// Starts etcd and kube-apiserver, and returns when the API answers.
    pub(crate) fn start() -> Cluster {
        let (port, etcd, peers) = (free_port(), free_port(), free_port());
        let mut cluster = Cluster::prepare(port);
        let (client, peer) = (
            format!("http://127.0.0.1:{etcd}"),
            format!("http://127.0.0.1:{peers}"),
        );
        let data = cluster.path("etcd");
        cluster.run_part(
            "etcd",
            &[
                ("data-dir", &data),
                ("listen-client-urls", &client),
                ("advertise-client-urls", &client),
                ("listen-peer-urls", &peer),
                ("initial-advertise-peer-urls", &peer),
                ("initial-cluster", &format!("default={peer}")),
                ("unsafe-no-fsync", "true"),
            ],
        );
        let path = |name: &str| cluster.path(name);
        let (certs, tokens) = (path("certs"), path("tokens.csv"));
        let (key, public) = (path("sa.key"), path("sa.pub"));
        let (policy, audit) = (path("audit.yaml"), path("audit.log"));
        cluster.run_part(
            "kube-apiserver",
            &[
                ("audit-policy-file", &policy),
                ("audit-log-path", &audit),
                ("etcd-servers", &client),
                ("secure-port", &port.to_string()),
                ("bind-address", "127.0.0.1"),
                ("cert-dir", &certs),
                ("service-account-issuer", "https://kubernetes.default.svc"),
                ("service-account-key-file", &public),
                ("service-account-signing-key-file", &key),
                ("token-auth-file", &tokens),
                ("authorization-mode", "RBAC"),
                ("service-cluster-ip-range", SERVICES),
            ],
        );
        cluster.until("the API server answers", || cluster.answers());
        cluster
    }

    fn answers(&self) -> bool {
        let asked = self.kubectl(&["get", "--raw", "/readyz"]);
        asked.status.success()
    }

    /// Kills kube-apiserver and starts it again; it answers some seconds after this returns.
    pub(crate) fn restart_api_server(&self) {
        self.kill_api_server();
        self.start_api_server_again();
    }

    /// Kills kube-apiserver.
    pub(crate) fn kill_api_server(&self) {
        self.with_api_server(|part| part.process.kill());
    }

    /// Starts kube-apiserver as it was started before.
    pub(crate) fn start_api_server_again(&self) {
        self.with_api_server(|part| {
            part.starts += 1;
            let log = format!("{}-{}.log", part.name, part.starts);
            let mut command = Command::new(self.binaries.join(part.name));
            command.args(&part.flags);
            part.process = Process::start(&mut command, self.dir.path().join(log));
        });
    }

    fn with_api_server(&self, act: impl FnOnce(&mut Part)) {
        let mut parts = self.parts.borrow_mut();
        let found = parts.iter_mut().find(|part| part.name == "kube-apiserver");
        act(found.expect("it has been started"));
    }

    /// Sends etcd a signal.
    pub(crate) fn signal_etcd(&self, signal: &str) {
        let parts = self.parts.borrow();
        let etcd = parts.iter().find(|part| part.name == "etcd");
        etcd.expect("it runs").process.signal(signal);
    }

    /// Starts kube-controller-manager, and returns when it has made the default service account, without which the API server refuses every pod.
    pub(crate) fn run_controller_manager(&mut self) {
        self.run_controller_manager_with(&[]);
    }

    /// [`Self::run_controller_manager`] with more flags.
    pub(crate) fn run_controller_manager_with(&mut self, more: &[(&str, &str)]) {
        let path = |name: &str| self.path(name);
        let (user, key, certs) = (path("manager"), path("sa.key"), path("manager-certs"));
        let (authority, signing_key) = (path("ca.crt"), path("ca.key"));
        let port = free_port().to_string();
        let flags = [
            ("kubeconfig", user.as_str()),
            ("service-account-private-key-file", &key),
            ("use-service-account-credentials", "true"),
            ("root-ca-file", &authority),
            ("cluster-signing-cert-file", &authority),
            ("cluster-signing-key-file", &signing_key),
            ("horizontal-pod-autoscaler-sync-period", "2s"),
            ("leader-elect", "false"),
            ("bind-address", "127.0.0.1"),
            ("secure-port", &port),
            ("cert-dir", &certs),
        ];
        self.run_part("kube-controller-manager", &[&flags, more].concat());
        self.until("there is a default service account", || {
            let account = ["get", "serviceaccount", "default", "--ignore-not-found"];
            !self.get(&account).is_empty()
        });
    }

    /// Starts kube-scheduler.
    pub(crate) fn run_scheduler(&mut self) {
        self.run_scheduler_with(&[]);
    }

    /// [`Self::run_scheduler`] with more flags.
    pub(crate) fn run_scheduler_with(&mut self, more: &[(&str, &str)]) {
        let path = |name: &str| self.path(name);
        let (user, certs) = (path("scheduler"), path("scheduler-certs"));
        let port = free_port().to_string();
        let flags = [
            ("kubeconfig", user.as_str()),
            ("leader-elect", "false"),
            ("bind-address", "127.0.0.1"),
            ("secure-port", &port),
            ("cert-dir", &certs),
        ];
        self.run_part("kube-scheduler", &[&flags, more].concat());
    }

    fn run_part(&mut self, name: &'static str, flags: &[(&str, &str)]) {
        let flags = flags.iter();
        let flags: Vec<_> = flags
            .map(|(flag, value)| format!("--{flag}={value}"))
            .collect();
        self.run_program(name, self.binaries.join(name), flags);
    }

    fn run_program(&mut self, name: &'static str, program: PathBuf, flags: Vec<String>) {
        let mut command = Command::new(program);
        command
            .args(&flags)
            .env("XDG_STATE_HOME", self.path("state"));
        let log = self.dir.path().join(format!("{name}.log"));
        let process = Process::start(&mut command, log);
        self.parts.borrow_mut().push(Part {
            name,
            flags,
            process,
            starts: 1,
        });
    }

    /// Starts a command of the program with the administrator's kubeconfig; `name` is the name of its log.
    pub(crate) fn mullion(&self, name: &str, args: &[&str]) -> Process {
        self.mullion_as("admin", name, args)
    }

    /// The same with the kubeconfig of another user.
    pub(crate) fn mullion_as(&self, user: &str, name: &str, args: &[&str]) -> Process {
        self.start_mullion(user, name, args, &[])
    }

    /// [`Self::mullion`] with more variables.
    pub(crate) fn mullion_with(
        &self,
        name: &str,
        args: &[&str],
        variables: &[(&str, String)],
    ) -> Process {
        self.start_mullion("admin", name, args, variables)
    }

    fn start_mullion(
        &self,
        user: &str,
        name: &str,
        args: &[&str],
        variables: &[(&str, String)],
    ) -> Process {
        let mut command = Command::new(program());
        command
            .args(args)
            .envs(variables.iter().map(|(key, value)| (key, value)))
            .args(["--kubeconfig", &self.path(user)])
            .env("XDG_STATE_HOME", self.dir.path().join("state"));
        Process::start(&mut command, self.dir.path().join(name))
    }

    /// What one of the programs has said so far.
    pub(crate) fn said(&self, name: &str) -> String {
        let parts = self.parts.borrow();
        let part = parts.iter().find(|part| part.name == name);
        part.expect("it has been started").process.said()
    }

    /// Runs a command of a shell in which kubectl is the administrator's, with a text on its standard input.
    pub(crate) fn shell(&self, command: &str, input: &str) -> Output {
        let input = self.write("input", input);
        Command::new("sh")
            .args(["-ec", command])
            .env("KUBECONFIG", self.path("admin"))
            .env("HOME", self.dir.path())
            .stdin(File::open(input).expect("it has just been written"))
            .output()
            .expect("a shell can be run")
    }

    /// A file of the cluster's folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> Output {
        Command::new("kubectl")
            .args(["--kubeconfig", &self.path("admin")])
            .args(args)
            .env("HOME", self.dir.path())
            .output()
            .expect("kubectl can be run")
    }

    /// What kubectl prints; it must not fail.
    #[track_caller]
    pub(crate) fn get(&self, args: &[&str]) -> String {
        let output = self.kubectl(args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        assert!(
            output.status.success(),
            "kubectl {}:\n{}",
            args.join(" "),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// What kubectl says against something; it must fail.
    #[track_caller]
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let output = self.kubectl(args);
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        assert!(!output.status.success(), "kubectl {}", args.join(" "));
        said
    }

    /// Applies objects.
    #[track_caller]
    pub(crate) fn apply(&self, manifest: &Value) {
        let file = self.write("manifest.json", &manifest.to_string());
        self.get(&["apply", "-f", &file]);
    }

    /// Writes a file into the cluster's folder and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// Waits until a condition holds.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, holds: impl FnMut() -> bool) {
        self.within(PATIENCE, what, holds);
    }

    /// Waits until a condition holds, for so long at most.
    #[track_caller]
    pub(crate) fn within(&self, patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + patience;
        while !holds() {
            for Part { name, process, .. } in self.parts.borrow_mut().iter_mut() {
                assert!(
                    !process.has_ended(),
                    "{name} has ended:\n{}",
                    process.said()
                );
            }
            assert!(
                Instant::now() < deadline,
                "it never happens that {what}; pods: {}",
                String::from_utf8_lossy(
                    &self
                        .kubectl(&["get", "pods,nodes", "-A", "-o", "wide"])
                        .stdout
                )
            );
            thread::sleep(LOOK);
        }
    }
}

/// The program that is tested: the one that cargo built for the tests, unless `MULLION_PROGRAM` names another one.
fn program() -> PathBuf {
    let other = std::env::var_os("MULLION_PROGRAM").map(PathBuf::from);
    other.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_mullion")))
}

/// The folder with upstream's programs.
fn binaries() -> PathBuf {
    let folder = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| {
        panic!(
            "these tests need kube-apiserver, kube-controller-manager, kube-scheduler and etcd: \
             KUBEBUILDER_ASSETS=$(scripts/upstream) cargo test -p mullion --test real"
        )
    });
    assert!(
        folder.join("kube-apiserver").exists(),
        "KUBEBUILDER_ASSETS names {}, which has no kube-apiserver",
        folder.display()
    );
    folder
}

fn kubeconfig(port: u16, user: &str) -> String {
    format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: real, cluster: {{server: \"https://127.0.0.1:{port}\", insecure-skip-tls-verify: true}}}}]
users: [{{name: {user}, user: {{token: {user}-token}}}}]
contexts: [{{name: real, context: {{cluster: real, user: {user}}}}}]
current-context: real
"
    )
}
