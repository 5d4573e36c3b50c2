//! The meaning of AWS's error codes (AWS provider: `pkg/errors`).

use mullion_cloud::{CapacityType, CloudError, Shortage};

/// Codes for too many calls, from EC2 and other services.
const THROTTLED: [&str; 9] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequestsException",
    "EC2ThrottledException",
    "SlowDown",
];

/// Codes for objects that do not exist.
const NOT_FOUND: [&str; 9] = [
    "InvalidCapacityReservationId.NotFound",
    "InvalidInstanceID.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateId.NotFound",
    "QueueDoesNotExist",
    "AWS.SimpleQueueService.NonExistentQueue",
    "NoSuchEntity",
    "ParameterNotFound",
    "ResourceNotFoundException",
];

/// Codes of CreateFleet for offerings without capacity.
const UNFULFILLABLE: [&str; 8] = [
    "InsufficientInstanceCapacity",
    "MaxSpotInstanceCountExceeded",
    "VcpuLimitExceeded",
    "UnfulfillableCapacity",
    "Unsupported",
    "InsufficientFreeAddressesInSubnet",
    "MaxFleetCountExceeded",
    "ReservationCapacityExceeded",
];

/// EC2's words for a spread placement group that has all the instances in a zone that it can have.
const SPREAD_LIMIT: &str = "limit of instances in this spread placement group";

/// The spot service cannot make its role: no spot offering can be had.
const NO_SPOT_ROLE: &str = "AuthFailure.ServiceLinkedRoleCreationNotPermitted";

/// Returns whether there were too many calls.
pub fn is_throttled(code: &str) -> bool {
    THROTTLED.contains(&code)
}

/// Returns whether the object does not exist.
pub fn is_not_found(code: &str) -> bool {
    NOT_FOUND.contains(&code)
}

/// Returns whether the caller may not make the call.
pub fn is_unauthorized(code: &str) -> bool {
    matches!(
        code,
        "UnauthorizedOperation"
            | "AuthFailure"
            | "AccessDenied"
            | "AccessDeniedException"
            | "Client.UnauthorizedOperation"
    )
}

/// Returns whether a dry run would have succeeded.
pub fn is_dry_run(code: &str) -> bool {
    code == "DryRunOperation"
}

/// Returns the reason why an option of a fleet has no capacity, or `None` for errors that do not pass by themselves.
pub fn shortage(code: &str, message: &str, capacity_type: CapacityType) -> Option<Shortage> {
    if !UNFULFILLABLE.contains(&code) && code != NO_SPOT_ROLE {
        return None;
    }
    Some(match (code, capacity_type) {
        ("InsufficientFreeAddressesInSubnet", _) => Shortage::Addresses,
        // Before the reservations: a full spread group refuses every option of the zone, however it is paid
        // for.
        ("InsufficientInstanceCapacity", _) if message.contains(SPREAD_LIMIT) => {
            Shortage::SpreadGroup
        }
        (_, CapacityType::Reserved) => Shortage::Reservation,
        ("ReservationCapacityExceeded", _) => Shortage::Reservation,
        ("InsufficientInstanceCapacity", _) => Shortage::Hosts {
            elsewhere: zones_elsewhere(message),
        },
        ("UnfulfillableCapacity", CapacityType::Spot) => Shortage::Spot,
        ("VcpuLimitExceeded", _) => match vcpu_limit(message) {
            Some(limit) => Shortage::Vcpus { limit },
            None => other(code, message),
        },
        _ => other(code, message),
    })
}

fn other(code: &str, message: &str) -> Shortage {
    Shortage::Other {
        code: code.to_owned(),
        message: message.to_owned(),
    }
}

/// Returns the zones that EC2's message recommends: `... or choosing us-west-2a, us-west-2b.`
fn zones_elsewhere(message: &str) -> Vec<std::sync::Arc<str>> {
    let Some((_, list)) = message.split_once("or choosing ") else {
        return Vec::new();
    };
    let list = list.split_once('.').map_or(list, |(list, _)| list);
    let zones = list.split(',').map(str::trim);
    zones
        .filter(|zone| !zone.is_empty())
        .map(Into::into)
        .collect()
}

/// Returns the number in `... your current vCPU limit of 32 allows ...`.
fn vcpu_limit(message: &str) -> Option<u64> {
    let (_, rest) = message.split_once("vCPU limit of ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Converts a code and a message to the error for the caller.
pub fn error(code: &str, message: &str) -> CloudError {
    // Callers react to these two in their own way: a throttled call is repeated, and a missing permission is
    // reported.
    if is_throttled(code) {
        return CloudError::Throttled;
    }
    if is_unauthorized(code) {
        return CloudError::Unauthorized(message.to_owned());
    }
    CloudError::Refused {
        code: code.to_owned(),
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use mullion_cloud::{FleetError, LaunchOption};

    use super::*;

    #[test]
    fn shortages_are_told_again_in_the_words_they_were_read_from() {
        let hosts = "We currently do not have sufficient c6a.large capacity in the Availability Zone you requested \
                     (us-west-2a). Our system will be working on provisioning additional capacity. You can currently get \
                     c6a.large capacity by not specifying an Availability Zone in your request or choosing us-west-2b, us-west-2c.";
        let vcpus = "You have requested more vCPU capacity than your current vCPU limit of 32 allows for the instance \
                     bucket that the specified instance type belongs to. Please visit \
                     http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.";
        let cases = [
            (
                "InsufficientInstanceCapacity",
                hosts,
                CapacityType::OnDemand,
            ),
            ("VcpuLimitExceeded", vcpus, CapacityType::OnDemand),
            (
                "MaxSpotInstanceCountExceeded",
                "Max spot instance count exceeded",
                CapacityType::Spot,
            ),
            (
                NO_SPOT_ROLE,
                "The provided credentials do not have permission",
                CapacityType::Spot,
            ),
        ];
        for (code, message, capacity_type) in cases {
            let error = FleetError {
                option: LaunchOption {
                    instance_type: "c6a.large".into(),
                    zone: "us-west-2a".into(),
                    capacity_type,
                    reservation: None,
                    placement: None,
                },
                shortage: shortage(code, message, capacity_type).expect("it may pass"),
                unavailable_for: std::time::Duration::ZERO,
            };
            assert_eq!(error.to_string(), format!("{code}: {message}"));
        }
    }

    #[test]
    fn what_does_not_pass_by_itself_is_no_shortage() {
        let refused = shortage("InvalidAMIID.NotFound", "", CapacityType::OnDemand);
        assert_eq!(refused, None);
        let spot = shortage("UnfulfillableCapacity", "", CapacityType::Spot);
        assert_eq!(spot, Some(Shortage::Spot));
        let reserved = shortage("UnfulfillableCapacity", "", CapacityType::Reserved);
        assert_eq!(reserved, Some(Shortage::Reservation));
        let full = shortage("InsufficientFreeAddressesInSubnet", "", CapacityType::Spot);
        assert_eq!(full, Some(Shortage::Addresses));
    }

    #[test]
    fn codes_become_errors() {
        assert_eq!(error("RequestLimitExceeded", "x"), CloudError::Throttled);
        assert_eq!(error("ThrottlingException", "x"), CloudError::Throttled);
        assert_eq!(
            error("UnauthorizedOperation", "no").to_string(),
            "UnauthorizedOperation: no"
        );
        assert_eq!(
            error("InvalidAMIID.NotFound", "gone").to_string(),
            "InvalidAMIID.NotFound: gone"
        );
        assert!(is_dry_run("DryRunOperation") && is_not_found("ParameterNotFound"));
    }
}
