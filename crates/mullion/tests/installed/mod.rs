//! The chart installed by helm, and the program that runs with exactly the rights of the chart's ServiceAccount: on our own API server
//! (`tests/it`) and on kube-apiserver (`tests/real`).
//!
//! Between the program and the API server a [`proxy`] notes every request. Two things fail a test: an answer 403, and a right of the chart that
//! no request used and for which [`story::UNUSED`] gives no reason.

pub(crate) mod clients;
pub(crate) mod process;
mod proxy;
mod rights;
pub(crate) mod story;

use std::{
    collections::BTreeSet,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Instant,
};

use serde_json::{Value, json};

use crate::cluster::PATIENCE;
use process::{LOOK, Process, free_port};
use proxy::Proxy;
use rights::{Right, failed, granted, refused, unused};

pub(crate) use story::{run as story, run_each_part as each_part};

/// The namespace of the release.
const NAMESPACE: &str = "mullion-system";

/// A cluster that an administrator's kubeconfig leads to.
pub(crate) struct Site {
    kubeconfig: PathBuf,
    /// For files of the test.
    dir: PathBuf,
    helm: PathBuf,
    /// Where the simulated EC2 answers clients of AWS; the chart's `cloud` is `aws` then.
    pub(crate) aws_port: Option<u16>,
}

/// The program, started as the chart starts it.
struct Controller {
    process: Process,
    proxy: Proxy,
    rights: BTreeSet<Right>,
}

/// Where a chart of the repository is.
pub(crate) fn chart(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    root.join(name)
}

/// The variables that lead clients of AWS to a simulated account, whatever those of this process say.
pub(crate) fn aws_variables(port: u16) -> [(&'static str, String); 7] {
    let nothing = || "/dev/null".to_owned();
    [
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
        ("AWS_REGION", "us-west-2".to_owned()),
        ("AWS_ACCESS_KEY_ID", "any".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "any".to_owned()),
        ("AWS_CONFIG_FILE", nothing()),
        ("AWS_SHARED_CREDENTIALS_FILE", nothing()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ]
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

impl Site {
    pub(crate) fn new(kubeconfig: PathBuf, dir: PathBuf, helm: PathBuf) -> Site {
        Site {
            kubeconfig,
            dir,
            helm,
            aws_port: None,
        }
    }

    /// The chart's value `cloud`.
    fn cloud(&self) -> &'static str {
        match self.aws_port {
            Some(_) => "aws",
            None => "simulated",
        }
    }

    fn run(&self, program: &Path, args: &[&str], stdin: &str) -> Output {
        let mut child = Command::new(program)
            .args(args)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .env("HOME", &self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} cannot be run: {error}", program.display()));
        let mut input = child.stdin.take().expect("stdin is piped");
        // It may end without having read all of it.
        let _ = input.write_all(stdin.as_bytes());
        drop(input);
        child.wait_with_output().expect("a child can be waited for")
    }

    /// What a program prints; it must not fail.
    #[track_caller]
    fn said(&self, program: &Path, args: &[&str], stdin: &str) -> String {
        let output = self.run(program, args, stdin);
        assert!(
            output.status.success(),
            "{} {}:\n{}\n{stdin}",
            program.display(),
            args.join(" "),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    #[track_caller]
    fn helm(&self, args: &[&str]) -> String {
        self.said(&self.helm, args, "")
    }

    #[track_caller]
    fn kubectl(&self, args: &[&str]) -> String {
        self.said(Path::new("kubectl"), args, "")
    }

    /// What kubectl says against an object; it must fail.
    #[track_caller]
    fn refused(&self, object: &Value) -> String {
        let output = self.run(
            Path::new("kubectl"),
            &["create", "-f", "-"],
            &object.to_string(),
        );
        assert!(!output.status.success(), "{object} is created");
        text(&output.stderr)
    }

    #[track_caller]
    fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.said(
            Path::new("kubectl"),
            &["apply", "-f", "-"],
            &list.to_string(),
        );
    }

    /// An object, or a list of them.
    #[track_caller]
    fn get(&self, args: &[&str]) -> Value {
        let all = [&["get", "-o", "json"], args].concat();
        serde_json::from_str(&self.kubectl(&all)).expect("kubectl prints JSON")
    }

    /// Waits until something holds, while the program runs.
    #[track_caller]
    fn until(&self, what: &str, controller: &mut Controller, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            let ended = controller.process.has_ended();
            assert!(
                !ended && Instant::now() < deadline,
                "it never happens that {what}; {}\nnot done: {:#?}\n--- the program says\n{}",
                self.kubectl(&["get", "pods,nodes", "-A", "-o", "wide"]),
                failed(&controller.proxy.asked()),
                controller.process.said()
            );
            thread::sleep(LOOK);
        }
    }

    /// Installs the chart as release `name` and starts the program with the arguments, the variables and the rights that the chart gives to it.
    /// What a process outside of the cluster cannot have is replaced: ports, the way of the webhooks, and mounted files.
    fn install(&self, name: &str, values: &[&str]) -> Controller {
        let chart = chart("chart").display().to_string();
        let install = ["install", name, &chart, "--create-namespace"];
        self.helm(&[&install[..], &["--namespace", NAMESPACE], values].concat());
        let manifest = self.helm(&["get", "manifest", name, "--namespace", NAMESPACE]);
        // kubectl turns YAML into JSON, offline.
        let create = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
        let manifest = self.said(Path::new("kubectl"), &create, &manifest);
        let objects: Vec<Value> = serde_json::Deserializer::from_str(&manifest)
            .into_iter()
            .map(|object| object.expect("kubectl prints JSON"))
            .flat_map(|object: Value| match object["items"].as_array() {
                Some(items) => items.clone(),
                None => vec![object],
            })
            .collect();
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
        let pod = &deployment.expect("the chart has one")["spec"]["template"]["spec"];
        let account = pod["serviceAccountName"].as_str().expect("a name");
        let token = ["create", "token", account, "--namespace", NAMESPACE];
        let token = self.kubectl(&token);
        let proxy = Proxy::start(&self.kubeconfig);
        let kubeconfig = self.dir.join(format!("{name}.kubeconfig"));
        let file = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: '{}'}}}}], users: [{{name: c, user: {{token: {token}}}}}], contexts: [{{name: c, context: {{cluster: c, user: c}}}}]}}",
            proxy.url()
        );
        std::fs::write(&kubeconfig, file).expect("a file");

        let container = &pod["containers"][0];
        let args = container["args"].as_array().into_iter().flatten();
        let args = args.map(|arg| arg.as_str().expect("a text"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
        for arg in args {
            let (flag, _) = arg.split_once('=').unwrap_or((arg, ""));
            match flag {
                "--webhook-service" => {
                    let services = objects.iter().filter(|object| object["kind"] == "Service");
                    let mut names = services.map(|own| &own["metadata"]["name"]);
                    let named = format!("--webhook-service={}", names.next().expect("one"));
                    assert_eq!(named.replace('"', ""), arg);
                }
                "--webhook-port" => {
                    let port = free_port();
                    command.arg(format!("{flag}={port}"));
                    command.arg(format!("--webhook-url=https://127.0.0.1:{port}"));
                }
                // Nobody asks there.
                "--metrics-port" | "--health-probe-port" => {
                    command.arg(format!("{flag}=0"));
                }
                _ => {
                    command.arg(arg);
                }
            }
        }
        for variable in container["env"].as_array().into_iter().flatten() {
            if let (Some(name), Some(value)) =
                (variable["name"].as_str(), variable["value"].as_str())
            {
                command.env(name, value);
            }
        }
        command
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .env("XDG_STATE_HOME", self.dir.join("state"));
        if let Some(port) = self.aws_port {
            command.envs(aws_variables(port));
        }
        Controller {
            process: Process::start(&mut command, self.dir.join(format!("{name}.log"))),
            proxy,
            rights: granted(&objects),
        }
    }
}

impl Controller {
    /// Asserts that nothing was refused so far.
    #[track_caller]
    fn assert_allowed(&self) {
        let refused = refused(&self.proxy.asked());
        assert!(
            refused.is_empty(),
            "the chart's roles do not allow: {refused:#?}\n{}",
            self.process.said()
        );
    }

    /// The rights that nothing was used of so far, as texts.
    fn unused(&self) -> BTreeSet<String> {
        let unused = unused(&self.rights, &self.proxy.asked());
        unused.iter().map(Right::to_string).collect()
    }
}
