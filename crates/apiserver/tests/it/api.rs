//! A client of a server in this process: a method, a path and a body in, the status, the answer and the warnings out.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use mullion_apiserver::{ApiServer, Config, admission::User};
use serde_json::{Value, json};
use tower::ServiceExt;

/// How long something may take that goes on by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// What `look` finds at last, in a test under paused time: between two looks all that goes on comes to rest, which takes no time here.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = tokio::time::Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never came true: {what}")
}

/// An administrator of a server of its own.
pub(crate) struct Api {
    router: axum::Router,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

impl Api {
    pub(crate) fn new(config: Config) -> Self {
        Api {
            router: ApiServer::new(config).router(),
        }
    }

    /// A server whose namespace `default` has its account, without which no pod comes in.
    pub(crate) async fn with_account() -> Self {
        let api = Api::new(Config::default());
        let account = json!({"metadata": {"name": "default"}});
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        api.post(accounts, account).await.ok();
        api
    }

    pub(crate) fn of(server: &std::sync::Arc<ApiServer>) -> Self {
        Api {
            router: server.router(),
        }
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Method::POST, path, Some(("application/json", body)))
            .await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(Method::PUT, path, Some(("application/json", body)))
            .await
    }

    pub(crate) async fn merge(&self, path: &str, body: Value) -> Answer {
        self.send(
            Method::PATCH,
            path,
            Some(("application/merge-patch+json", body)),
        )
        .await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None).await
    }

    /// The body of a GET once it is as wanted; see [`until`].
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        until(path, async || {
            let body = self.get(path).await.body;
            wanted(&body).then_some(body)
        })
        .await
    }

    /// The table that `kubectl get` asks for.
    pub(crate) async fn table(&self, path: &str) -> Value {
        self.table_of("GET", path).await
    }

    /// The same of another method.
    pub(crate) async fn table_of(&self, method: &str, path: &str) -> Value {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
        self.answer(request, Body::empty()).await.ok()
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, None).await
    }

    /// A body that is sent as it is.
    pub(crate) async fn send_text(
        &self,
        method: &str,
        path: &str,
        media: &str,
        body: &str,
    ) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(CONTENT_TYPE, media);
        self.answer(request, Body::from(body.to_owned())).await
    }

    async fn send(&self, method: Method, path: &str, body: Option<(&str, Value)>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        let body = match body {
            Some((content_type, body)) => {
                request = request.header(CONTENT_TYPE, content_type);
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        self.answer(request, body).await
    }

    /// The status and the bytes of a GET of that media type.
    pub(crate) async fn bytes(&self, path: &str, accept: &str) -> (u16, Bytes) {
        let request = Request::builder().uri(path).header("accept", accept);
        let response = self.respond(request, Body::empty()).await;
        let status = response.status().as_u16();
        (status, whole(response.into_body()).await)
    }

    /// The status of the answer to a request without a body that accepts only this media type.
    pub(crate) async fn status_of(&self, method: &str, path: &str, accept: &str) -> u16 {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("accept", accept);
        self.respond(request, Body::empty()).await.status().as_u16()
    }

    /// A header of the answer to a GET.
    pub(crate) async fn header(&self, path: &str, name: &str) -> Option<String> {
        let response = self
            .respond(Request::builder().uri(path), Body::empty())
            .await;
        let value = response.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    }

    async fn answer(&self, request: http::request::Builder, body: Body) -> Answer {
        let response = self.respond(request, body).await;
        let status = response.status().as_u16();
        let headers = response.headers().get_all("warning").iter();
        let warnings = headers
            .map(|value| value.to_str().expect("a warning is text").to_owned())
            .collect();
        let bytes = whole(response.into_body()).await;
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer {
            status,
            body,
            warnings,
        }
    }

    async fn respond(&self, request: http::request::Builder, body: Body) -> Response<Body> {
        let user = User {
            name: "admin".into(),
            groups: vec!["system:masters".into()],
            ..User::default()
        };
        let request = request
            .extension(user)
            .body(body)
            .expect("the parts are valid");
        let answered = self.router.clone().oneshot(request).await;
        answered.expect("the router answers every request")
    }
}

async fn whole(body: Body) -> Bytes {
    let collected = body.collect().await;
    collected.expect("the answer ends").to_bytes()
}

impl Answer {
    /// The answer of a request that succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.status < 300, "{}: {}", self.status, self.body);
        self.body
    }

    /// The message of a request that was refused with that status.
    #[track_caller]
    pub(crate) fn refused(self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        self.body["message"].as_str().unwrap_or_default().to_owned()
    }
}
