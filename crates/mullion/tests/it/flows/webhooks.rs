//! docs/webhooks.md as it is written: its program on this machine, configured by its commands, by URL and by service.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    process::Command,
    time::Instant,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, KeyPair};

use crate::{
    cluster::{Cluster, PATIENCE, text},
    process::{Running, ended},
};

const PAGE: &str = include_str!("../../../../../docs/webhooks.md");

/// What stands between two texts.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).expect(start);
    rest.split_once(end).expect(end).0
}

/// The page's program, running, with a certificate in place of the one that openssl makes there.
fn webhook(cluster: &Cluster, certificate: &str, key: &str, port: u16) -> Running {
    let put = |name: &str, content: &str| {
        fs::write(cluster.home().join(name), content).expect("the folder can be written");
    };
    let program = between(PAGE, "cat > webhook.py <<'END'\n", "END\n");
    put("webhook.py", &program.replace("8443", &port.to_string()));
    put("cert.pem", certificate);
    put("key.pem", key);
    let mut python = Command::new("python3");
    let running = Running::start(python.arg("webhook.py").current_dir(cluster.home()));
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "the webhook does not listen");
        std::thread::yield_now();
    }
    running
}

#[test]
fn the_webhook_of_the_page_sees_what_people_and_controllers_write() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let key = KeyPair::generate().expect("a key");
    let names = ["127.0.0.1", "my-webhook.default.svc"].map(str::to_owned);
    let params = CertificateParams::new(names).expect("the names are good");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    // Free until now; nobody else is given it so soon.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.expect("loopback has ports").port();
    let _webhook = webhook(&cluster, &certificate, &key.serialize_pem(), port);

    let commands = between(PAGE, "python3 webhook.py &\n", "```");
    let commands = commands.replace("8443", &port.to_string());
    let mut shell = Command::new("bash");
    shell
        .args(["-ec", &commands])
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("HOME", cluster.home())
        .current_dir(cluster.home());
    let output = ended(&mut shell, "", PATIENCE);
    let (said, why) = (text(&output.stdout), text(&output.stderr));
    let refusal = between(PAGE, "The last command is refused: `", "`.");
    assert!(why.contains(refusal), "{said}{why}");
    let labelled = ["get", "pods", "-l", "app=web,seen-by=webhook", "-o", "name"];
    cluster.until("two labelled pods", &labelled, |pods| {
        pods.lines().count() == 2
    });
    let listed = cluster.kubectl(&["get", "mutatingwebhookconfigurations"]);
    let line = listed.lines().find(|line| line.starts_with("my-webhook "));
    let cells: Vec<&str> = line.expect(&listed).split_whitespace().collect();
    assert_eq!(cells[1], "1", "{listed}");

    let service = between(PAGE, "## By service", "with `clientConfig");
    let service = between(service, "```\nkubectl ", "\n```");
    cluster.kubectl(&service.split(' ').collect::<Vec<_>>());
    let bundle = STANDARD.encode(certificate);
    cluster.apply(&format!(
        "\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {{name: my-webhook}}
webhooks:
- name: my-service.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {{service: {{name: my-webhook, namespace: default, path: /mutate, port: {port}}}, caBundle: {bundle}}}
  matchConditions:
  - {{name: people, expression: \"!request.userInfo.username.startsWith('system:')\"}}
  rules:
  - {{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [pods]}}
"
    ));
    let refused = cluster.refused(&["run", "untagged", "--image=nginx"], "");
    assert!(
        refused.contains(&refusal.replace("my-webhook", "my-service")),
        "{refused}"
    );
    cluster.kubectl(&["run", "tagged", "--image=nginx:1.29"]);
    let labels = cluster.kubectl(&["get", "pod", "tagged", "--show-labels"]);
    assert!(labels.contains("seen-by=webhook"), "{labels}");
}
