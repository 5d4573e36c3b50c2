//! Admission webhooks as kubectl configures them, with a program on this machine that answers.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};
use tokio_rustls::TlsAcceptor;

use crate::cluster::Cluster;

/// A webhook on loopback: labels what it may change, refuses images without a tag and maps. Runs until it is dropped.
struct Program {
    port: u16,
    bundle: String,
    _runtime: Runtime,
}

impl Program {
    fn start() -> Program {
        let key = KeyPair::generate().expect("a key");
        let names = ["127.0.0.1", "judge.default.svc"].map(str::to_owned);
        let params = CertificateParams::new(names).expect("the names are good");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("PEM");
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring knows them")
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .expect("they go together");
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .expect("loopback has ports");
        let port = listener.local_addr().expect("it is bound").port();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(acceptor.clone(), stream));
            }
        });
        Program {
            port,
            bundle: STANDARD.encode(certificate),
            _runtime: runtime,
        }
    }
}

/// Answers the requests of one connection until it is closed.
async fn serve(acceptor: TlsAcceptor, stream: TcpStream) -> std::io::Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let header = line.to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let review: Value = serde_json::from_slice(&body)?;
        let answer = answer(&review["request"]).to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        stream.write_all((head + &answer).as_bytes()).await?;
        stream.flush().await?;
    }
}

fn answer(request: &Value) -> Value {
    let object = &request["object"];
    let containers = object["spec"]["containers"].as_array();
    let untagged = |container: &Value| {
        container["image"]
            .as_str()
            .is_some_and(|i| !i.contains(':'))
    };
    let why = if object["kind"] == "ConfigMap" {
        Some("no maps here")
    } else if containers.is_some_and(|all| all.iter().any(untagged)) {
        Some("images need a tag")
    } else {
        None
    };
    let mut response = json!({"uid": request["uid"], "allowed": why.is_none()});
    if let Some(why) = why {
        response["status"] = json!({"message": why, "code": 403});
    } else {
        let patch = json!([{"op": "add", "path": "/metadata/labels/seen-by", "value": "webhook"}]);
        response["patchType"] = "JSONPatch".into();
        response["patch"] = STANDARD.encode(patch.to_string()).into();
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

#[test]
fn webhooks_on_this_machine_see_what_people_and_controllers_write() {
    let (cluster, program) = (Cluster::start(&["--speed", "max"]), Program::start());
    let (port, bundle) = (program.port, &program.bundle);
    let of_pods = format!(
        "\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {{name: labels}}
webhooks:
- name: labels.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {{url: 'https://127.0.0.1:{port}/', caBundle: {bundle}}}
  objectSelector: {{matchExpressions: [{{key: app, operator: Exists}}]}}
  rules:
  - {{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [pods]}}
"
    );
    cluster.apply(&of_pods);
    let listed = cluster.kubectl(&["get", "mutatingwebhookconfigurations"]);
    let line = listed.lines().find(|line| line.starts_with("labels "));
    let cells: Vec<&str> = line.expect(&listed).split_whitespace().collect();
    assert_eq!(cells[1], "1", "{listed}");
    cluster.kubectl(&[
        "create",
        "deployment",
        "web",
        "--image=nginx:1.29",
        "--replicas=2",
    ]);
    let labelled = ["get", "pods", "-l", "app=web,seen-by=webhook", "-o", "name"];
    cluster.until("two labelled pods", &labelled, |pods| {
        pods.lines().count() == 2
    });
    let refused = cluster.refused(&["run", "x", "--image=nginx", "--labels=app=x"], "");
    assert!(
        refused.contains(
            r#"admission webhook "labels.example.com" denied the request: images need a tag"#
        ),
        "{refused}"
    );

    cluster.kubectl(&[
        "create",
        "service",
        "externalname",
        "judge",
        "--external-name",
        "localhost",
    ]);
    cluster.apply(&format!(
        "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {{name: judge}}
webhooks:
- name: judge.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {{service: {{name: judge, namespace: default, port: {port}}}, caBundle: {bundle}}}
  matchConditions:
  - {{name: people, expression: \"!request.userInfo.username.startsWith('system:')\"}}
  rules:
  - {{operations: ['*'], apiGroups: [''], apiVersions: [v1], resources: [configmaps]}}
"
    ));
    let refused = cluster.refused(&["create", "configmap", "m"], "");
    assert!(
        refused
            .contains(r#"admission webhook "judge.example.com" denied the request: no maps here"#),
        "{refused}"
    );
    cluster.kubectl(&["delete", "validatingwebhookconfiguration", "judge"]);
    cluster.kubectl(&["create", "configmap", "m"]);
}
