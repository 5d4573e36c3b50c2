//! POST to a collection.

use axum::body::Body;
use http::Response;
use mullion_kube_text::status::Status;

use super::{body, call::Call, reply, write};
use crate::object::{metadata, type_meta::Expected};

pub(crate) async fn create(call: &Call, body: Body) -> Result<Response<Body>, Status> {
    let media = body::media(&call.headers)?;
    let options = call.write_options("CreateOptions")?;
    let bytes = body::read(body).await?;
    let mut tries = 0;
    loop {
        tries += 1;
        call.go_on()?;
        // Decoded anew in each try, because the write consumes the object.
        let mut object = body::object(
            call,
            &Expected::object(&call.row),
            media,
            &bytes,
            options.validation,
        )?;
        call.resource().behaviour.default(&mut object);
        // Only of a POST: an update that creates its object keeps deletionTimestamp.
        metadata::wipe(&mut object);
        let named = !metadata::text(&object, "name").is_empty();
        match write::create(call, &options, object).await {
            // Another client took the generated name first, so retry with a new one.
            Err(status)
                if status.reason == "AlreadyExists" && !named && tries < write::NAME_TRIES => {}
            created => return reply::outcome(call, 201, created?),
        }
    }
}
