"""Builds each role from what its process shares. Heavy imports stay inside the role's builder."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.handler import CoordinatorHandler, CoordinatorRules
from coordinator.submissions import SubmissionRules
from runtime.health import Readiness
from runtime.stage import Stage
from tokenfleet.options import environment
from tokenfleet.plan import Role
from tokenfleet.shared import Shared
from workers.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenfleet.front import Front
    from workers.models.media import MediaPipeline


def build_front(shared: Shared, readiness: Readiness) -> "Front | None":
    """None where this process has no HTTP front."""
    if Role.INGRESS not in shared.plan.roles:
        return None
    from tokenfleet.front import Front

    return Front(shared, readiness)


def build_coordinator(shared: Shared) -> CoordinatorHandler:
    rules = CoordinatorRules(
        limits=shared.limits,
        submissions=SubmissionRules(
            cluster_id=shared.bus.cluster_id,
            topics=shared.topics,
            timeout_s=shared.plan.ingress.request_timeout_s,
            trusted_tenants=shared.plan.fleet.trusted_tenants,
            echo_headers=shared.plan.fleet.echo_headers,
        ),
        metadata_modalities=shared.media.with_metadata,
    )
    bodies = shared.bodies if Role.RENDER in shared.plan.roles else None
    return CoordinatorHandler(rules, shared.delivery, bodies)


@dataclass(frozen=True, slots=True)
class RenderParts:
    """The render stage and its media side, which is started before it and closed after it."""

    stage: Stage
    media: "MediaPipeline | None"
    """None for a model that takes text only."""
    tokenizer: Tokenizer


def build_render(shared: Shared) -> RenderParts:
    from workers.render.stage import RenderStage

    plan = shared.plan
    tokenizer = Tokenizer.from_directory(shared.directory.path)
    media = None
    if shared.media.modalities:
        from workers.models.limits import MediaLimits
        from workers.models.media import MediaPipeline

        media = MediaPipeline(
            plan.model,
            plan.render,
            shared.blobs,
            shared.encoder_cache,
            vocabulary=tokenizer,
            limits=MediaLimits.from_environ(environment()),
        )
    stage = RenderStage(
        plan.model,
        plan.render,
        media,
        tokenizer=tokenizer,
        limits=shared.limits,
        bodies=shared.bodies,
    )
    return RenderParts(stage, media, tokenizer)


def build_other_stages(shared: Shared, tokenizer: Tokenizer | None = None) -> list[Stage]:
    """The stages of this process's roles behind render, in the order in which requests pass.

    `tokenizer` is the model's, where render has it already.
    """
    roles = shared.plan.roles
    stages: list[Stage] = []
    stages += _engines(shared)
    if Role.DERENDER in roles:
        stages.append(_derender(shared, tokenizer))
    return stages


def _engines(shared: Shared) -> list[Stage]:
    roles, plan = shared.plan.roles, shared.plan
    encodes = Role.ENCODE in roles and bool(shared.media.modalities)
    generates = Role.PREFILL in roles
    if not encodes and not generates:
        return []
    from workers.encode.stage import EncodeStage
    from workers.models.engine.assembly import create_engines
    from workers.prefill.stage import PrefillStage

    # Prefill encodes too, where a legacy request brings tensors straight to it.
    engines = create_engines(plan.model, plan.engine, encodes=True, generates=generates)
    cache, facts = shared.encoder_cache, engines.facts
    assert cache is not None, "a process with an engine has an encoder cache"
    stages: list[Stage] = []
    if encodes:
        assert engines.encoder is not None, "asked for above"
        stages.append(EncodeStage(plan.model, plan.engine, engines.encoder, cache, facts))
    if engines.engine is not None:
        stages.append(
            PrefillStage(
                plan.model,
                plan.engine,
                engines.engine,
                cache,
                facts=facts,
                limits=shared.limits,
                source=engines.source,
                encoder=engines.encoder,
                reasoning=engines.reasoning,
                registry=shared.telemetry.registry,
            )
        )
    return stages


def _derender(shared: Shared, tokenizer: Tokenizer | None) -> Stage:
    from workers.derender.stage import DerenderStage

    return DerenderStage(
        shared.plan.model,
        shared.limits,
        response_role=shared.plan.ingress.response_role,
        tokenizer=tokenizer,
        template_kwargs=shared.plan.render.default_chat_template_kwargs,
        stop_scope=shared.plan.engine.stop_scope,
    )
