//! DELETE of a collection: every object that matches, one by one, as if each had been deleted by name.

use axum::body::Body;
use http::Response;
use serde_json::{Value, json};

use super::{
    call::Call,
    delete::{self, DeleteOptions},
    list::{self, ListOptions},
    reply,
    selector::Selector,
};
use crate::status::Status;

pub(crate) async fn delete_collection(call: &Call, body: Body) -> Result<Response<Body>, Status> {
    let list_options = ListOptions::parse(&call.query, false)?;
    let selector = Selector::of(call)?;
    let options = DeleteOptions::read(call, body).await?;
    let page = list::read(call, &list_options, &selector).await?;
    for object in &page.objects {
        match delete::delete_key(call, object.key(), &options).await {
            Err(status) if status.code == 404 => {}
            done => {
                done?;
            }
        }
    }
    let items: Value = page
        .objects
        .iter()
        .map(|object| list::item(&call.row, call.row.served(object)))
        .collect();
    let metadata = list::metadata(call, &page, &selector);
    let kind = call.row.list_kind();
    let list = json!({"kind": kind, "apiVersion": call.row.api_version(), "metadata": metadata, "items": items});
    reply::encode(call.form.media, 200, &list, None)
}
