# What mullion controller needs in an AWS account: the policy of its role, the role of the nodes that it buys, and the queue that tells what becomes of
# them. It is what ../cloudformation.yaml makes.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.40"
    }
  }
}

variable "cluster_name" {
  description = "Name of the EKS cluster"
  type        = string
}

variable "namespace" {
  description = "Namespace of the chart"
  type        = string
  default     = "mullion-system"
}

variable "service_account" {
  description = "ServiceAccount of the chart"
  type        = string
  default     = "mullion"
}

data "aws_caller_identity" "own" {}
data "aws_partition" "own" {}
data "aws_region" "own" {}

resource "aws_iam_role" "node" {
  name_prefix = "mullion-node-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.${data.aws_partition.own.dns_suffix}" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each   = toset(["AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly"])
  role       = aws_iam_role.node.name
  policy_arn = "arn:${data.aws_partition.own.partition}:iam::aws:policy/${each.value}"
}

# The role is taken by EKS Pod Identity: the pods of one ServiceAccount of one cluster and nobody else.
resource "aws_iam_role" "controller" {
  name_prefix = "mullion-controller-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
    }]
  })
}

resource "aws_eks_pod_identity_association" "controller" {
  cluster_name    = var.cluster_name
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = aws_iam_role.controller.arn
}

# There are two, since a policy has no more than 6,144 characters.
resource "aws_iam_policy" "controller" {
  for_each    = toset(["machines", "surroundings"])
  name_prefix = "mullion-${each.value}-"
  policy = templatefile("${path.module}/${each.value}.json", {
    Account   = data.aws_caller_identity.own.account_id
    Cluster   = var.cluster_name
    NodeRole  = aws_iam_role.node.arn
    Partition = data.aws_partition.own.partition
    Queue     = aws_sqs_queue.interruption.arn
    Region    = data.aws_region.own.name
    Suffix    = data.aws_partition.own.dns_suffix
  })
}

resource "aws_iam_role_policy_attachment" "controller" {
  for_each   = aws_iam_policy.controller
  role       = aws_iam_role.controller.name
  policy_arn = each.value.arn
}

resource "aws_sqs_queue" "interruption" {
  name_prefix = "mullion-interruption-"
  # What is older than this has happened already.
  message_retention_seconds = 300
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue_policy" "interruption" {
  queue_url = aws_sqs_queue.interruption.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "TakeEvents"
        Effect    = "Allow"
        Principal = { Service = ["events.amazonaws.com"] }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.interruption.arn
        Condition = { StringEquals = { "aws:SourceAccount" = data.aws_caller_identity.own.account_id } }
      },
      {
        Sid       = "WithTlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.interruption.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}

locals {
  events = {
    scheduled-change  = { source = "aws.health", type = "AWS Health Event" }
    spot-interruption = { source = "aws.ec2", type = "EC2 Spot Instance Interruption Warning" }
    reservation       = { source = "aws.ec2", type = "EC2 Capacity Reservation Instance Interruption Warning" }
    rebalance         = { source = "aws.ec2", type = "EC2 Instance Rebalance Recommendation" }
    state-change      = { source = "aws.ec2", type = "EC2 Instance State-change Notification" }
  }
}

resource "aws_cloudwatch_event_rule" "interruption" {
  for_each = local.events
  # Names of rules have 64 characters at the most.
  name_prefix   = "mullion-${each.key}-"
  event_pattern = jsonencode({ source = [each.value.source], "detail-type" = [each.value.type] })
}

resource "aws_cloudwatch_event_target" "interruption" {
  for_each  = local.events
  rule      = aws_cloudwatch_event_rule.interruption[each.key].name
  target_id = "queue"
  arn       = aws_sqs_queue.interruption.arn
}

output "node_role_name" {
  description = "The field role of EC2NodeClasses"
  value       = aws_iam_role.node.name
}

output "controller_role_arn" {
  description = "The role of the controller"
  value       = aws_iam_role.controller.arn
}

output "queue_name" {
  description = "The interruption queue"
  value       = aws_sqs_queue.interruption.name
}
