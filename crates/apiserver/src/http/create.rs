//! POST to a collection.

use axum::body::Body;
use http::Response;

use super::{body, call::Call, reply, write};
use crate::status::Status;

pub(crate) async fn create(call: &Call, body: Body) -> Result<Response<Body>, Status> {
    let media = body::media(&call.headers)?;
    let options = call.write_options("CreateOptions")?;
    let bytes = body::read(body).await?;
    let mut object = body::object(
        call,
        &body::Expected::object(&call.row),
        media,
        &bytes,
        options.validation,
    )?;
    call.resource().behaviour.default(&mut object);
    reply::outcome(call, 201, write::create(call, &options, object).await?)
}
