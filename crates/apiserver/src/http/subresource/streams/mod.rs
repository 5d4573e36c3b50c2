//! `pods/exec`, `pods/attach` and `pods/portforward`: connections that a real kube-apiserver forwards to a kubelet.
//!
//! Containers are simulated: no process runs in them and no port is open. Requests that kube-apiserver or a kubelet would refuse get the
//! same errors. All others get the connection that they ask for ([`upgrade`]: WebSocket or SPDY/3.1), and in it, in place of the
//! command's or connection's error, a sentence that says so ([`channels`], [`session`]). Clients show that sentence like the error of a
//! command that could not be run.

mod channels;
mod session;
mod spdy;
mod upgrade;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Method, Response};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use mullion_kinds::request::{
    Authorize,
    attributes::{Attributes, Resource, Target},
};
use mullion_kube_text::{
    golang::integer,
    status::{Cause, Status},
};
use mullion_schema::tree::Tree;
use serde_json::{Value, json};
use tokio::sync::watch;

use self::channels::{Codec, Socket};
pub(crate) use self::{
    channels::{accept, close},
    session::SessionError,
    upgrade::websocket as agree_to_websocket,
};
use super::log::{container_name, require_node};
use crate::{
    connections::ActivityGuard,
    http::{call::Call, negotiate::Media, reply, write},
    limits,
    request::upgrade::RequestedProtocol,
};

/// The stream protocols of commands over SPDY (kubelet: SupportedStreamingProtocols).
const COMMAND_PROTOCOLS: &[&str] = &[
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];
/// The WebSocket subprotocol of which the API server itself is one end (kube-apiserver: StreamTranslatorHandler).
const V5: &str = "v5.channel.k8s.io";
/// The WebSocket subprotocols that kubelets serve.
const CHANNEL_PROTOCOLS: &[&str] = &[
    "channel.k8s.io",
    "base64.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
];
/// The stream protocol of forwarded ports.
const PORT_PROTOCOL: &str = "portforward.k8s.io";
/// The prefix of WebSocket subprotocols that carry SPDY.
const TUNNEL: &str = "SPDY/3.1+";
/// How long a client may take to switch protocols after the response.
const SWITCH: Duration = Duration::from_secs(10);
/// The exit code of shells for a command that exists and cannot be run.
const CANNOT_RUN: &str = "126";

pub(crate) type Connection = TokioIo<Upgraded>;

/// A connection that can switch to another protocol.
#[derive(Clone)]
pub(crate) struct Upgrade {
    /// Resolves to the connection when the response has been sent.
    pub(crate) on: OnUpgrade,
    /// Becomes true when the server shuts down.
    pub(crate) closing: watch::Receiver<bool>,
    /// Marks the connection as in use.
    pub(crate) busy: ActivityGuard,
    /// Counts as one of the user's long-running requests until the connection ends.
    pub(crate) stream: Arc<limits::Stream>,
}

/// Handles `exec`, `attach` and `portforward`.
pub(crate) fn serve<'a>(
    call: &'a Call,
    method: Method,
    _: Body,
) -> Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send + 'a>> {
    Box::pin(async move {
        let subresource = call.subresource.as_deref().unwrap_or_default();
        if call.query.get("dryRun").is_some() {
            return Err(Status::bad_request("dryRun is not supported"));
        }
        // kube-apiserver asks again for `create`: who may only `get` pods/exec must not run commands through a WebSocket, which is a GET.
        if method != Method::POST {
            may_create(call, subresource)?;
        }
        if subresource == "portforward" {
            check_ports(call)?;
        }
        write::admit_connection(call, options(call)).await?;
        answer(call, subresource)
    })
}

/// Returns 400 if `ports` is not a list of port numbers.
fn check_ports(call: &Call) -> Result<(), Status> {
    let mut ports = call.query.all("ports").flat_map(|ports| ports.split(','));
    let is_wrong = |port: &&str| {
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        !digits || port.parse::<u16>().is_err()
    };
    match ports.find(is_wrong) {
        None => Ok(()),
        Some(port) => {
            let why = integer::fault("ParseUint", port);
            Err(Status::bad_request(format!(
                "cannot convert to []int32: {why}"
            )))
        }
    }
}

/// Returns the options of the connection as admission webhooks see them.
fn options(call: &Call) -> Value {
    let query = &call.query;
    let (kind, forwards) = match call.subresource.as_deref().unwrap_or_default() {
        "attach" => ("PodAttachOptions", false),
        "portforward" => ("PodPortForwardOptions", true),
        _ => ("PodExecOptions", false),
    };
    let mut options = json!({"kind": kind, "apiVersion": "v1"});
    if forwards {
        let ports = query.all("ports").flat_map(|ports| ports.split(','));
        let ports: Vec<i64> = ports.filter_map(|port| port.parse().ok()).collect();
        if !ports.is_empty() {
            options["ports"] = ports.into();
        }
        return options;
    }
    for flag in ["stdin", "stdout", "stderr", "tty"] {
        if query.flag(flag) == Some(true) {
            options[flag] = true.into();
        }
    }
    if let Some(container) = query.text("container") {
        options["container"] = container.into();
    }
    let command: Vec<&str> = query.all("command").collect();
    if !command.is_empty() {
        options["command"] = command.into();
    }
    options
}

fn answer(call: &Call, subresource: &str) -> Result<Response<Body>, Status> {
    let pod = call.row.served(&*call.stored()?);
    let container = match subresource {
        "portforward" => None,
        _ => Some(container_name(&pod, call.query.text("container"))?),
    };
    // After the container's name, in the order of kube-apiserver's ExecLocation.
    let node = pod["spec"].text("nodeName");
    if node.is_empty() {
        return Err(Status::bad_request(format!(
            "pod {} does not have a host assigned",
            call.name
        )));
    }
    require_node(call, node)?;
    let wanted = RequestedProtocol::of(&call.headers)
        .ok_or_else(|| Status::bad_request("Upgrade request required"))?;
    let Some(container) = container else {
        return Ok(ports(call, &pod, wanted));
    };
    let why = match subresource {
        "attach" => "it has no process to attach to",
        _ => "no command can run in it",
    };
    let command = Command::read(
        call,
        format!(
            "container {container:?} of pod {:?} is simulated: {why}",
            call.name
        ),
    );
    Ok(run(
        call,
        refusal(&pod, container, &command),
        command,
        wanted,
    ))
}

/// Checks that a user who opens the connection by GET may also create it, as by POST (kube-apiserver:
/// AuthorizePodWebsocketUpgradeCreatePermission).
fn may_create(call: &Call, subresource: &str) -> Result<(), Status> {
    let attributes = Attributes {
        verb: "create".into(),
        target: Target::Resource(Resource {
            resource: &call.resource().plural,
            subresource,
            namespace: call.namespace.as_deref().unwrap_or_default(),
            name: call.name.as_str().into(),
            ..Resource::default()
        }),
    };
    let decision = call.server.authorizer().decide(&call.user, &attributes);
    if decision.allowed {
        Ok(())
    } else {
        Err(Status::forbidden(
            call.resource(),
            &call.name,
            &decision.reason,
        ))
    }
}

/// The streams that a client of `exec` or `attach` asks for, and the sentence that answers it.
struct Command {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
    sentence: String,
}

impl Command {
    fn read(call: &Call, sentence: String) -> Self {
        let flag = |name| call.query.flag(name).unwrap_or(false);
        let tty = flag("tty");
        Command {
            stdin: flag("stdin"),
            stdout: flag("stdout"),
            // A terminal has a single output.
            stderr: flag("stderr") && !tty,
            tty,
            sentence,
        }
    }

    /// Returns how many streams a client opens over SPDY.
    fn streams(&self, protocol: Option<&str>) -> usize {
        let resizes = matches!(protocol, Some("v4.channel.k8s.io" | "v3.channel.k8s.io"));
        let wanted = [self.stdin, self.stdout, self.stderr, self.tty && resizes];
        1 + wanted.into_iter().filter(|wanted| *wanted).count()
    }

    /// Returns the content of the error stream: a Status since version 4, plain text before.
    fn failure(&self, protocol: Option<&str>) -> Vec<u8> {
        match protocol {
            Some(protocol) if protocol.starts_with("v4.") || protocol == V5 => {
                failure(&self.sentence).to_json().to_string().into_bytes()
            }
            _ => self.sentence.clone().into_bytes(),
        }
    }
}

/// Returns the outcome of a command that could not be run. Some clients expect an exit code in every failure.
fn failure(sentence: &str) -> Status {
    let mut status = Status::internal("");
    sentence.clone_into(&mut status.message);
    if let Some(details) = &mut status.details {
        details.causes = vec![Cause {
            reason: "ExitCode".to_owned(),
            message: CANNOT_RUN.to_owned(),
            ..Cause::default()
        }];
    }
    status
}

/// A kubelet's refusal: HTTP status and message.
type Refusal = Option<(u16, String)>;

/// Returns the refusal of a kubelet for a container that cannot be reached.
fn refusal(pod: &Value, container: &str, command: &Command) -> Refusal {
    if !(command.stdin || command.stdout || command.stderr) {
        let why = "you must specify at least 1 of stdin, stdout, stderr";
        return Some((400, why.to_owned()));
    }
    let lists = [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ];
    let mut statuses = lists.iter().flat_map(|list| pod["status"].items(list));
    let runs =
        statuses.any(|status| status.text("name") == container && status["state"].has("running"));
    (!runs).then(|| (500, format!("container not found ({container:?})")))
}

/// Answers `exec` or `attach`.
fn run(
    call: &Call,
    refusal: Refusal,
    command: Command,
    wanted: RequestedProtocol<'_>,
) -> Response<Body> {
    let offered = match wanted {
        RequestedProtocol::Unknown => return upgrade::unknown(),
        RequestedProtocol::WebSocket(offered) if offered.contains(&V5) => {
            // With version 5 kube-apiserver accepts the WebSocket before it asks the kubelet, so a refusal comes inside the connection.
            let failure = match refusal {
                Some((_, why)) => {
                    let why = format!("unable to upgrade connection: {why}");
                    Status::internal(why).to_json().to_string().into_bytes()
                }
                None => command.failure(Some(V5)),
            };
            return command_by_channels(call, V5, &command, failure);
        }
        RequestedProtocol::WebSocket(_) | RequestedProtocol::Spdy(_) if refusal.is_some() => {
            let (code, why) = refusal.expect("there is one");
            return reply::text(code, why);
        }
        RequestedProtocol::WebSocket(offered) => {
            let served = |protocol: &str| CHANNEL_PROTOCOLS.contains(&protocol);
            let Some(protocol) = upgrade::choose(&offered, served) else {
                return upgrade::no_common_protocol(&offered, CHANNEL_PROTOCOLS);
            };
            let failure = command.failure(protocol);
            return command_by_channels(call, protocol.unwrap_or_default(), &command, failure);
        }
        RequestedProtocol::Spdy(offered) => offered,
    };
    let served = |protocol: &str| COMMAND_PROTOCOLS.contains(&protocol);
    let Some(protocol) = upgrade::choose(&offered, served) else {
        return upgrade::no_common_protocol(&offered, COMMAND_PROTOCOLS);
    };
    let (streams, failure) = (command.streams(protocol), command.failure(protocol));
    switch(call, Ok(upgrade::spdy(protocol)), &command.sentence, {
        move |connection| session::command(session::Wire::Plain(connection), streams, failure)
    })
}

fn command_by_channels(
    call: &Call,
    protocol: &str,
    command: &Command,
    failure: Vec<u8>,
) -> Response<Body> {
    let agreed = upgrade::websocket(
        &call.headers,
        Some(protocol).filter(|protocol| !protocol.is_empty()),
    );
    let codec = Codec::of(protocol);
    let first = channels::first(command.stdout, command.stderr);
    let with_input = command.stdin;
    switch(
        call,
        agreed,
        &command.sentence,
        move |connection| async move {
            let socket = Socket::new(connection, codec).await;
            socket.command(first, failure, with_input).await
        },
    )
}

/// Answers `portforward`.
fn ports(call: &Call, pod: &Value, wanted: RequestedProtocol<'_>) -> Response<Body> {
    let pod_name = call.name.clone();
    if pod["status"].text("phase") != "Running" {
        let namespace = call.namespace.as_deref().unwrap_or_default();
        return reply::text(500, format!("pod not found (\"{pod_name}_{namespace}\")"));
    }
    let sentence = sentence_of_ports(&pod_name, "its ports");
    let (offered, tunnelled) = match wanted {
        RequestedProtocol::Unknown => return upgrade::unknown(),
        RequestedProtocol::Spdy(offered) => (offered, false),
        RequestedProtocol::WebSocket(offered) => {
            let inner: Vec<&str> = offered
                .iter()
                .filter_map(|protocol| protocol.strip_prefix(TUNNEL))
                .filter(|protocol| protocol.ends_with(".k8s.io"))
                .collect();
            if inner.is_empty() {
                return ports_by_channels(call, &offered, pod_name, &sentence);
            }
            (inner, true)
        }
    };
    let Some(protocol) = upgrade::choose(&offered, |protocol| protocol == PORT_PROTOCOL) else {
        return upgrade::no_common_protocol(&offered, &[PORT_PROTOCOL]);
    };
    if tunnelled {
        let agreed = upgrade::websocket(&call.headers, Some(&format!("{TUNNEL}{PORT_PROTOCOL}")));
        return switch(call, agreed, &sentence, move |connection| async move {
            let socket = channels::accept(connection).await;
            session::ports(session::Wire::Tunnel(Box::new(socket)), pod_name).await
        });
    }
    switch(call, Ok(upgrade::spdy(protocol)), &sentence, {
        move |connection| session::ports(session::Wire::Plain(connection), pod_name)
    })
}

fn ports_by_channels(
    call: &Call,
    offered: &[&str],
    pod_name: String,
    sentence: &str,
) -> Response<Body> {
    let ports = match channels::ports(&call.query) {
        Ok(ports) => ports,
        Err(why) => return reply::text(400, why.to_string()),
    };
    let served =
        |protocol: &str| protocol.starts_with("v4.") && CHANNEL_PROTOCOLS.contains(&protocol);
    let Some(protocol) = upgrade::choose(offered, served) else {
        return upgrade::no_common_protocol(offered, &CHANNEL_PROTOCOLS[2..]);
    };
    let codec = Codec::of(protocol.unwrap_or_default());
    let agreed = upgrade::websocket(&call.headers, protocol);
    switch(call, agreed, sentence, move |connection| async move {
        let socket = Socket::new(connection, codec).await;
        socket.ports(&ports, &pod_name).await
    })
}

/// Returns the sentence about one port of a pod, or about all of them.
fn sentence_of_ports(pod_name: &str, port: &str) -> String {
    format!("pod {pod_name:?} is simulated: nothing listens on {port}")
}

/// Switches to another protocol if both sides agreed. A client in this process has no connection and gets the sentence as a 501.
fn switch<F>(
    call: &Call,
    agreed: Result<Response<Body>, Box<Response<Body>>>,
    sentence: &str,
    session: impl FnOnce(Connection) -> F + Send + 'static,
) -> Response<Body>
where
    F: Future<Output = Result<(), session::SessionError>> + Send,
{
    let agreed = match agreed {
        Ok(agreed) => agreed,
        Err(refusal) => return *refusal,
    };
    let Some(upgrade) = call.upgrade.clone() else {
        return reply::refusal(&Status::new(501, "", sentence), Media::Json);
    };
    hand_over(upgrade, session);
    agreed
}

/// Runs `session` on the connection once the response that agrees to the switch is sent.
pub(crate) fn hand_over<F>(upgrade: Upgrade, session: impl FnOnce(Connection) -> F + Send + 'static)
where
    F: Future<Output = Result<(), SessionError>> + Send,
{
    let Upgrade {
        on,
        mut closing,
        busy,
        stream,
    } = upgrade;
    tokio::spawn(async move {
        // Held by the task, so that the connection counts until its session ends and not only until the response is sent.
        let _counts = (stream, busy);
        let talk = async {
            let connection = tokio::time::timeout(SWITCH, on)
                .await
                .map_err(|_| session::SessionError::Slow)??;
            session(TokioIo::new(connection)).await
        };
        tokio::select! {
            ended = talk => if let Err(error) = ended {
                tracing::debug!(%error, "a connection with another protocol ended early");
            },
            _ = closing.wait_for(|closing| *closing) => {}
        }
    });
}
