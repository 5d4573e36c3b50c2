//! DELETE of a collection: deletes each matching object as if it had been deleted by name.

use axum::body::Body;
use http::Response;
use mullion_kube_text::status::Status;

use super::{
    call::Call,
    delete::{self, DeleteOptions},
    list::{self, ListOptions},
    selector::Selector,
};

pub(crate) async fn delete_collection(call: &Call, body: Body) -> Result<Response<Body>, Status> {
    let list_options = ListOptions::parse(&call.query, false)?;
    let selector = Selector::of(call)?;
    let options = DeleteOptions::read(call, body).await?;
    let page = list::read(call, &list_options, &selector).await?;
    for object in &page.objects {
        call.go_on()?;
        // Yield to other tasks: without a disk to wait for, this loop would run for long.
        tokio::task::coop::consume_budget().await;
        match delete::delete_key(call, object.key(), &options).await {
            // Another client deleted it first, which is what this request asks for (kube-apiserver: Store.DeleteCollection).
            Err(status) if status.code == 404 => {}
            done => {
                done?;
            }
        }
    }
    // Only now, as in kube-apiserver, which deletes first and finds out when it encodes the list.
    list::check_shape(call)?;
    list::answer(call, page, &selector).await
}
