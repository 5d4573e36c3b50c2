//! ARC, Amazon's Application Recovery Controller: the zonal shifts of the cluster.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Method, Response, StatusCode},
};
use jiff::Timestamp;
use mullion_cloud::CloudProvider;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::{admit_by_path, respond_by_path, unknown_path};
use crate::{Endpoint, refusal::Refusal};

/// What paths of ARC begin with.
pub(crate) const PATH: &str = "/managedresources/";
/// The longest time that a zonal shift can be started for.
const LONGEST: Duration = Duration::from_secs(3 * 24 * 3600);

/// Answers a request.
pub(crate) async fn answer(
    endpoint: &Endpoint,
    method: &Method,
    path: &str,
    request_id: &str,
) -> Response<Body> {
    let resource = path.strip_prefix(PATH).unwrap_or_default();
    respond_by_path(
        managed_resource(endpoint, method, resource).await,
        request_id,
    )
}

async fn managed_resource(
    endpoint: &Endpoint,
    method: &Method,
    resource: &str,
) -> Result<Value, Refusal> {
    if *method != Method::GET {
        return Err(unknown_path(method, &format!("{PATH}{resource}")));
    }
    admit_by_path(endpoint, "arc-zonal-shift", "GetManagedResource")?;
    let arn = super::eks::arn(endpoint);
    // SDKs escape the separators of the ARN.
    let named = percent_decode_str(resource).decode_utf8_lossy();
    if named != arn {
        return Err(Refusal::with(
            StatusCode::NOT_FOUND,
            "ResourceNotFoundException",
            format!("There is no managed resource {named}."),
        ));
    }
    let shifts = endpoint.ec2().zonal_shifts().await?;
    let now = Timestamp::now();
    let shifts: Vec<_> = shifts
        .into_iter()
        .map(|shift| {
            // A fault has no end of its own; ARC's shifts always have one, which a user puts off as long as the zone is impaired.
            let expires = shift.expires.unwrap_or(now + LONGEST);
            json!({
                "appliedStatus": "APPLIED",
                "zonalShiftId": format!("mullion-{}", shift.zone_id),
                "resourceIdentifier": arn,
                "awayFrom": shift.zone_id,
                "startTime": now.as_second(),
                "expiryTime": expires.as_second(),
                "comment": "mullion fault zonal-shift",
                "shiftType": "ZONAL_SHIFT",
            })
        })
        .collect();
    Ok(json!({
        "arn": arn,
        "name": endpoint.ec2().config().cluster,
        "appliedWeights": {},
        "zonalShifts": shifts,
        "autoshifts": [],
        "zonalAutoshiftStatus": "DISABLED",
    }))
}
