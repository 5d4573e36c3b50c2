//! `pods/exec`, `pods/attach` and `pods/portforward`: what a kube-apiserver hands through to a kubelet.
//!
//! There is nothing to hand through here: the containers are simulated, no process runs in them and no port is open. A request that would
//! reach a kubelet is refused before the connection is upgraded, which is what clients of either protocol (SPDY by POST, WebSocket by GET
//! with SPDY to fall back on) show as an error; a request that no kubelet would get to see is refused as upstream does.

use std::{future::Future, pin::Pin};

use axum::body::Body;
use futures::future;
use http::{Method, Response};

use super::log::container_name;
use crate::{http::call::Call, kinds::tree::Tree, status::Status};

/// The handler of all three.
pub(crate) fn serve<'a>(
    call: &'a Call,
    _: Method,
    _: Body,
) -> Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send + 'a>> {
    Box::pin(future::ready(Err(
        refusal(call).unwrap_or_else(|status| status)
    )))
}

fn refusal(call: &Call) -> Result<Status, Status> {
    let pod = call.row.served(&*call.stored()?);
    let streams = call.subresource.as_deref().unwrap_or_default();
    let name = match streams {
        "portforward" => None,
        _ => Some(container_name(&pod, call.query.text("container"))?),
    };
    if pod["spec"].text("nodeName").is_empty() {
        return Err(Status::bad_request(format!(
            "pod {} does not have a host assigned",
            call.name
        )));
    }
    let why = match (name, streams) {
        (Some(name), "attach") => format!(
            "container {name:?} of pod {:?} is simulated: it has no process to attach to",
            call.name
        ),
        (Some(name), _) => format!(
            "container {name:?} of pod {:?} is simulated: no command can run in it",
            call.name
        ),
        (None, _) => format!(
            "pod {:?} is simulated: nothing listens on its ports",
            call.name
        ),
    };
    Ok(Status::new(501, "", why))
}
