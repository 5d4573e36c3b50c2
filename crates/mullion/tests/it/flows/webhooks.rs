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

/// A webhook that runs, with a certificate in place of the one that openssl makes in the page.
struct Webhook {
    port: u16,
    certificate: String,
    _running: Running,
}

/// Runs the page's program, changed.
fn webhook(cluster: &Cluster, change: impl Fn(&str) -> String) -> Webhook {
    let key = KeyPair::generate().expect("a key");
    let names = ["127.0.0.1", "my-webhook.default.svc"].map(str::to_owned);
    let params = CertificateParams::new(names).expect("the names are good");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    // Free until now; nobody else is given it so soon.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.expect("loopback has ports").port();
    let put = |name: &str, content: &str| {
        fs::write(cluster.home().join(name), content).expect("the folder can be written");
    };
    let program = change(between(PAGE, "cat > webhook.py <<'END'\n", "END\n"));
    put("webhook.py", &program.replace("8443", &port.to_string()));
    put("cert.pem", &certificate);
    put("key.pem", &key.serialize_pem());
    let mut python = Command::new("python3");
    let running = Running::start(python.arg("webhook.py").current_dir(cluster.home()));
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "the webhook does not listen");
        std::thread::yield_now();
    }
    Webhook {
        port,
        certificate,
        _running: running,
    }
}

#[test]
fn the_webhook_of_the_page_sees_what_people_and_controllers_write() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let webhook = webhook(&cluster, str::to_owned);
    let port = webhook.port;

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
    let bundle = STANDARD.encode(&webhook.certificate);
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

#[test]
fn a_pod_that_a_webhook_sends_to_windows_has_an_address_too() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let webhook = webhook(&cluster, |program| {
        let labels = "labels = {**pod[\"metadata\"].get(\"labels\", {}), \"seen-by\": \"webhook\"}";
        let added = "\"/metadata/labels\", \"value\": labels";
        for part in [labels, added] {
            assert!(program.contains(part), "{program}");
        }
        program
            .replace(labels, "selector = {\"kubernetes.io/os\": \"windows\"}")
            .replace(added, "\"/spec/nodeSelector\", \"value\": selector")
    });
    let Webhook { port, .. } = webhook;
    let bundle = STANDARD.encode(&webhook.certificate);
    cluster.apply(&format!(
        "\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {{name: to-windows}}
webhooks:
- name: to-windows.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {{url: 'https://127.0.0.1:{port}/mutate', caBundle: {bundle}}}
  rules:
  - {{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [pods], scope: Namespaced}}
"
    ));
    // Nobody knows what this image runs on, so the selector can only come from the webhook.
    cluster.kubectl(&["run", "web", "--image=registry.example.com/app:1"]);
    let pod = cluster.get(&["pod", "web"]);
    assert_eq!(pod["spec"]["nodeSelector"]["kubernetes.io/os"], "windows");
    let resources = &pod["spec"]["containers"][0]["resources"];
    for list in ["requests", "limits"] {
        let asked = &resources[list]["vpc.amazonaws.com/PrivateIPv4Address"];
        assert_eq!(asked, "1", "{resources}");
    }
}
