//! What is asked of any bytes that a client may send: no request panics, and what is answered holds together.
//!
//! Each question is a function of bytes, so that fuzz targets and ordinary tests ask the same. Requests go through the whole server,
//! without a socket; writes are dry runs, so that the order of questions does not matter.

use std::{
    fmt::Write,
    sync::{Arc, LazyLock},
};

use axum::{Router, body::Body};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures::FutureExt;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::BodyExt;
use mullion_apiserver::{ApiServer, Config, admission::User};
use mullion_kube_text::quantity::Quantity;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::ServiceExt;

const OBJECTS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/web";

/// A server with a few objects, and what it runs on.
struct World {
    runtime: Runtime,
    router: Router,
    _server: Arc<ApiServer>,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let server = runtime.block_on(async { ApiServer::new(Config::default()) });
    let world = World {
        router: server.router_as(User::administrator()),
        runtime,
        _server: server,
    };
    for name in ["a", "b", "c"] {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": name, "tier": "x"}}, "data": {"k": "v"},
        });
        world.made(OBJECTS, &map);
    }
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "annotations": {"a": "b"}},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "containers": [
                        {"name": "a", "image": "i", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}], "ports": [{"containerPort": 80}]},
                        {"name": "b", "image": "i", "args": ["1", "2"], "resources": {"requests": {"cpu": "100m"}}},
                    ],
                    "tolerations": [{"key": "os", "operator": "Exists"}],
                    "volumes": [{"name": "v", "emptyDir": {}}],
                },
            },
        },
    });
    world.made("/apis/apps/v1/namespaces/default/deployments", &deployment);
    world
});

/// Parts of the sentences that kube-apiserver itself answers with 500 to what a client sends. Any other 500 is a fault of this server.
const SENTENCES_OF_500: [&str; 20] = [
    "failed to create typed patch object (",
    "failed to convert new object (",
    "unknown patch type: ",
    " does not contain declared merge key: ",
    "The order in patch list:",
    "expected a []interface {}, but received a ",
    "expected a map[string]interface {}, but received a ",
    "expected slice or array type, but got: struct",
    "unable to find api field in struct ",
    "merging an object in json but data type is not struct, instead is: ",
    "list element types are not identical: ",
    "cannot merge lists without merge key for struct",
    "merging lists cannot yet be specified in the patch",
    "no elements in any of the given slices",
    " is not a map",
    "strconv.ParseUint: parsing ",
    "resourceVersion should not be set on objects to be created",
    "etcdserver: request is too large",
    "trying to send message larger than max (",
    "failed to allocate ",
];

/// What came back.
struct Answer {
    code: u16,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON was asked for")
    }

    /// Whether it was done; what was not is refused with a sentence, and no refusal is the server's fault.
    fn done(&self) -> bool {
        if self.code < 400 {
            return self.code < 300;
        }
        let said = String::from_utf8_lossy(&self.body);
        let is_upstreams = || SENTENCES_OF_500.iter().any(|part| said.contains(part));
        assert!(
            self.code < 500 || self.code == 504 || is_upstreams(),
            "{}: {said}",
            self.code
        );
        // Upstream has no words for documents that are not there, not in that form, or not the one that is meant.
        let may_be_silent = matches!(self.code, 404 | 406 | 412);
        assert!(
            may_be_silent || !said.is_empty(),
            "{} without a sentence",
            self.code
        );
        false
    }
}

impl World {
    fn send(&self, request: Request<Body>) -> Answer {
        self.runtime.block_on(async {
            let answer = self.router.clone().oneshot(request).await;
            let answer = answer.expect("the router answers every request");
            let code = answer.status().as_u16();
            // A watch goes on; that it has begun is enough.
            let body = match answer.into_body().collect().now_or_never() {
                Some(body) => body.expect("the answer ends").to_bytes().to_vec(),
                None => b"goes on".to_vec(),
            };
            Answer { code, body }
        })
    }

    fn body(&self, method: Method, uri: &str, media: &str, body: &[u8]) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", media)
            .body(Body::from(body.to_vec()));
        self.send(request.expect("the parts are valid"))
    }

    fn made(&self, uri: &str, object: &Value) {
        let answer = self.body(
            Method::POST,
            uri,
            "application/json",
            object.to_string().as_bytes(),
        );
        assert_eq!(answer.code, 201, "{}", answer.json());
    }
}

/// A path with its query, then headers, a line each.
pub(crate) fn path(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let Ok(uri) = Uri::try_from(lines.next().unwrap_or_default()) else {
        return;
    };
    let mut request = Request::builder().uri(uri);
    for line in lines.take(20) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = line.split_at(colon);
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name),
            HeaderValue::from_bytes(value[1..].trim_ascii()),
        ) {
            request = request.header(name, value);
        }
    }
    if let Ok(request) = request.body(Body::empty()) {
        WORLD.send(request).done();
    }
}

/// A label selector, and on a second line a field selector: what they leave of three objects.
pub(crate) fn selector(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (labels, fields) = text.split_once('\n').unwrap_or((text, ""));
    let uri = format!(
        "{OBJECTS}?labelSelector={}&fieldSelector={}",
        escaped(labels),
        escaped(fields)
    );
    let Ok(request) = Request::get(uri).body(Body::empty()) else {
        return;
    };
    let answer = WORLD.send(request);
    if answer.done() {
        let list = answer.json();
        let items = list["items"].as_array().expect("a list has items");
        assert!(items.len() <= 3);
        for item in items {
            let name = item["metadata"]["name"].as_str().expect("named");
            assert!(["a", "b", "c"].contains(&name));
        }
    }
}

/// A quantity as text: written and read again it is the same, and its roundings agree.
pub(crate) fn quantity(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(quantity) = Quantity::parse(text) else {
        return;
    };
    let written = quantity.to_string();
    let again = Quantity::parse(&written).expect("what is written can be read");
    assert!(again == quantity, "{text} is written {written}");
    assert_eq!(again.to_string(), written);
    assert_eq!(quantity.is_zero(), quantity == Quantity::from_integer(0));
    assert_eq!(quantity.is_negative(), quantity < Quantity::from_integer(0));
    let doubled = quantity.plus(&quantity);
    assert!(quantity.is_beyond_reach() || (doubled < quantity) == quantity.is_negative());
    let rounded = quantity.rounded_up_to_milli();
    let milli = rounded.milli_value();
    let cut = matches!(milli, i64::MIN | i64::MAX);
    assert!(cut || rounded.value() >= milli / 1000);
}

/// A JSON patch of a Deployment.
pub(crate) fn json_patch(input: &[u8]) {
    patched("application/json-patch+json", input);
}

/// A merge patch of a Deployment.
pub(crate) fn merge_patch(input: &[u8]) {
    patched("application/merge-patch+json", input);
}

/// A strategic merge patch of a Deployment.
pub(crate) fn strategic_patch(input: &[u8]) {
    patched("application/strategic-merge-patch+json", input);
}

/// A configuration that is applied to a Deployment, in YAML.
pub(crate) fn apply(input: &[u8]) {
    let uri = format!("{DEPLOYMENT}?dryRun=All&fieldManager=fuzz&force=true");
    let answer = WORLD.body(Method::PATCH, &uri, "application/apply-patch+yaml", input);
    if answer.done() {
        let managers = answer.json()["metadata"]["managedFields"].clone();
        let managers = managers.as_array().expect("an applied object has managers");
        let applies = |manager: &Value| manager["operation"] == "Apply";
        let owns = managers.iter().filter(|manager| applies(manager)).count();
        assert!(owns <= 1, "one manager applies: {managers:?}");
    }
}

fn patched(media: &str, input: &[u8]) {
    let uri = format!("{DEPLOYMENT}?dryRun=All");
    let answer = WORLD.body(Method::PATCH, &uri, media, input);
    if answer.done() {
        let object = answer.json();
        assert_eq!(
            (&object["kind"], &object["metadata"]["name"]),
            (&json!("Deployment"), &json!("web"))
        );
    }
}

/// An object in JSON, to be created: what its kind says where it goes.
pub(crate) fn object(input: &[u8]) {
    created("application/json", input);
}

/// An object in protobuf, to be created: what its envelope says where it goes, and what comes back can be sent again.
pub(crate) fn protobuf(input: &[u8]) {
    created("application/vnd.kubernetes.protobuf", input);
}

fn created(media: &str, input: &[u8]) {
    // The first kind that is named in the bytes is meant.
    let kinds = [
        ("Deployment", "/apis/apps/v1/namespaces/default/deployments"),
        ("Service", "/api/v1/namespaces/default/services"),
        ("ConfigMap", OBJECTS),
        (
            "CustomResourceDefinition",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        ),
        ("Pod", "/api/v1/namespaces/default/pods"),
    ];
    let named = kinds.iter().find(|(kind, _)| {
        let quoted = |window: &[u8]| window == kind.as_bytes();
        input.windows(kind.len()).any(quoted)
    });
    let (_, uri) = named.unwrap_or(&kinds[4]);
    let uri = format!("{uri}?dryRun=All");
    let request = |body: &[u8]| {
        Request::post(&uri)
            .header("content-type", media)
            .header("accept", media)
            .body(Body::from(body.to_vec()))
            .expect("the parts are valid")
    };
    let first = WORLD.send(request(input));
    if first.done() {
        // The second has an identity already and is refused for that at most.
        WORLD.send(request(&first.body)).done();
    }
}

/// A rule in CEL, in a definition whose default value it is asked of.
pub(crate) fn cel(input: &[u8]) {
    let Ok(rule) = std::str::from_utf8(input) else {
        return;
    };
    let spec = json!({
        "type": "object",
        "default": {"name": "n", "count": 1, "list": ["a", "b"], "map": {"x": 1}},
        "x-kubernetes-validations": [{"rule": rule}],
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "count": {"type": "integer", "minimum": 0},
            "list": {"type": "array", "maxItems": 9, "items": {"type": "string", "maxLength": 9}},
            "map": {"type": "object", "maxProperties": 9, "additionalProperties": {"type": "integer"}},
        },
    });
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let uri = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All";
    let definition = definition.to_string();
    WORLD
        .body(Method::POST, uri, "application/json", definition.as_bytes())
        .done();
}

/// What a client sends back to go on with a list; JSON is put into the form of tokens first.
pub(crate) fn continue_token(input: &[u8]) {
    let token = match input.first() {
        Some(b'{') => URL_SAFE_NO_PAD.encode(input),
        _ => String::from_utf8_lossy(input).into_owned(),
    };
    let uri = format!("{OBJECTS}?limit=1&continue={}", escaped(&token));
    if let Ok(request) = Request::get(uri).body(Body::empty()) {
        let answer = WORLD.send(request);
        if answer.done() {
            let items = answer.json()["items"].as_array().map_or(0, Vec::len);
            assert!(items <= 1);
        }
    }
}

/// Text as a value in a query.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(3 * text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(byte)),
            byte => write!(out, "%{byte:02x}").expect("a string takes everything"),
        }
    }
    out
}
