"""Every setting of every role, as frozen groups; the command makes each a flag and a variable.

A field `served_model_name` is `--served-model-name` and `TOKENFLEET_SERVED_MODEL_NAME`; flags win.
Names are vLLM's where vLLM has them (06-launch §4). Nothing else reads the environment.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.fields import ReasoningEffort


class Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class FleetSettings(Group):
    """What every role needs to find the others."""

    bus: str = Field(
        "memory://", description="memory:// (one process) or kafka://host:port[,host:port]"
    )
    store: str = Field(
        "memory:///", description="Blob store: file:///path, s3://bucket/prefix or memory:///"
    )
    topic_prefix: str = Field(
        "tokenfleet.",
        pattern=r"^[A-Za-z0-9._-]{0,200}$",
        description="One prefix is one fleet is one model",
    )
    num_partitions: int = Field(
        8, ge=1, description="Partitions of each topic that has to be created"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe lines that are logged"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: console on a terminal, else a JSON object a line"
    )
    shutdown_timeout_s: float = Field(30.0, gt=0, description="Budget for a stop after SIGTERM")
    max_in_flight: int = Field(16, ge=1, description="Records one role works on at once")
    max_in_flight_bytes: int = Field(
        64 * 1024 * 1024, ge=1, description="Bytes of records one role holds at once"
    )
    max_attempts: int = Field(3, ge=1, description="Tries of one record at one stage")
    session_timeout_ms: int = Field(
        10_000, ge=1_000, description="Kafka session time-out of a worker"
    )
    store_max_age_s: float = Field(
        14 * 24 * 3600.0,
        gt=0,
        description="Age at which blobs are removed; longer than deadlines and topics' retention",
    )
    store_memory_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=1024 * 1024,
        description="What a memory:/// store may hold beside what is in use, divided among server"
        " processes; the least recently used goes first",
    )
    trusted_tenants: bool = Field(
        False, description="Take the tenant from the x-tenant header of records"
    )
    echo_headers: tuple[str, ...] = Field(
        (),
        max_length=16,
        description="Headers of records that their answers repeat, beside correlationId,"
        " correlation-id, traceparent and tracestate",
    )


class ModelSettings(Group):
    """The model, as every role sees it."""

    model: str = Field(description="Model directory (or the demo model, when left out)")
    served_model_name: tuple[str, ...] = Field(
        (), description="Accepted model names; the first is reported"
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Context length; default: the model's own"
    )
    max_logprobs: int = Field(
        20, ge=-1, description="Most log probabilities a request may ask for; -1: no limit"
    )
    max_num_seqs: int = Field(128, ge=1, description="Sequences an engine works on at once")
    generation_config: str = Field(
        "auto", description="auto, vllm or a folder with generation_config.json"
    )
    override_generation_config: dict[str, Any] = Field(
        default_factory=dict, description="Sampling defaults instead of the model's own"
    )
    enable_mm_embeds: bool = Field(
        False, description="Take embeddings of pictures in place of pictures"
    )
    limit_mm_per_prompt: dict[str, int] = Field(
        default_factory=dict, description='Most items of a modality in a prompt: {"image": 4}'
    )
    tool_call_parser: str | None = Field(
        None, description="Parser of the model's tool calls, by vLLM's name"
    )
    reasoning_parser: str | None = Field(
        None, description="Parser of the model's reasoning, by vLLM's name"
    )
    enable_auto_tool_choice: bool = Field(
        False, description="Let the model call tools by itself (needs --tool-call-parser)"
    )
    dtype: str = Field("auto", description="auto, float32, bfloat16 or float16")


class RenderSettings(Group):
    """How prompts are made and media fetched (01-render)."""

    chat_template: str | None = Field(None, description="A file, or the template itself")
    chat_template_content_format: Literal["auto", "string", "openai"] = Field(
        "auto", description="What a template gets as content: one text, or a list of parts"
    )
    trust_request_chat_template: bool = Field(
        False, description="Take chat templates from requests"
    )
    chat_template_timeout_s: float = Field(
        2.0, gt=0, le=600, description="For reading, and for rendering, a request's own template"
    )
    chat_template_memory_mb: int = Field(
        256, ge=16, description="What a request's own template may take beside the interpreter"
    )
    default_chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Variables of the template; a request's own win"
    )
    reasoning_effort_map: dict[ReasoningEffort, str] = Field(
        default_factory=dict,
        description="What the template gets for a request's reasoning_effort, where not the same",
    )
    exclude_tools_when_tool_choice_none: bool = Field(
        False, description="Keep tools from the template where tool_choice is none"
    )
    tool_strict_level: Literal["auto", "function", "parameter"] | None = Field(
        None, description="How strictly tool calls keep to their schemas"
    )
    interleave_mm_strings: bool = Field(
        False, description="Put media where they stand in the text, for templates that take text"
    )
    escape_control_tokens: bool = Field(
        False, description="Make control tokens that a user typed plain text instead of control ids"
    )
    trust_request_mm_kwargs: bool = Field(
        False, description="Take mm_processor_kwargs and media_io_kwargs from requests"
    )
    mm_processor_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Options of the model's picture and video processors"
    )
    media_io_kwargs: dict[str, Any] = Field(
        default_factory=dict, description='Options of loading, by modality: {"video": {"fps": 2}}'
    )
    mm_hasher_algorithm: Literal["blake3", "sha256", "sha512"] = Field(
        "blake3", description="What items are named by"
    )
    mm_device_do_normalize: bool = Field(
        True, description="Send uint8 pixels; the encoder normalises"
    )
    allowed_media_domains: tuple[str, ...] = Field(
        (), description="Hosts that media may be fetched from; none: any public one"
    )
    allowed_local_media_path: str | None = Field(
        None, description="Folder whose files requests may name by file:// URLs"
    )
    max_waiting_media: int = Field(
        1000,
        ge=1,
        description="Requests that may wait for media besides those of --max-in-flight; in each"
        " process",
    )
    anthropic_disabled_thinking_effort: Literal[
        "auto", "none", "low", "medium", "high", "xhigh", "max"
    ] = Field(
        "auto", description="reasoning_effort for thinking: disabled; auto: asks the template"
    )
    render_threads: int | None = Field(
        None,
        ge=1,
        description="In each process; default: its share of the cores, or up to 4",
    )


class EngineSettings(Group):
    """Encode and prefill."""

    ec: str | None = Field(
        None, description="Encoder cache: directory:///path; default: fresh for this run"
    )
    ec_transfer_config: dict[str, Any] | None = Field(
        None, description="vLLM's form: role and shared_storage_path"
    )
    ec_params_format: Literal["seed", "vllm"] = Field(
        "seed", description="Shape of ec_transfer_params returned"
    )
    stop_scope: Literal["content", "all"] = Field(
        "content",
        description="What stop strings apply to in chat; differs only where output is parsed",
    )
    engine_threads: int | None = Field(
        None, ge=1, description="torch threads; default: half of the cores"
    )
    stream_interval_ms: float = Field(
        20.0,
        ge=0,
        le=10_000,
        description="What a stream grows by within it travels in one record; the first at once",
    )


class IngressSettings(Group):
    """The HTTP front."""

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0: all of them")
    port: int = Field(8000, ge=0, le=65535, description="0: any free port")
    api_server_count: int | None = Field(
        None,
        ge=1,
        description="Server processes behind the port; default: for `launch render` one for each"
        " core, at most 8, else 1",
    )
    api_key: tuple[str, ...] = Field((), description="Bearer keys; none: open")
    enable_scale_out: bool = Field(
        False, description="Serve vLLM's scale-out endpoints: render, generate, derender"
    )
    generate_stage: Literal["encode", "prefill"] | None = Field(
        None, description="Pin /inference/v1/generate to one stage"
    )
    request_timeout_s: float = Field(600.0, gt=0, description="Deadline of a request")
    max_body_bytes: int = Field(256 * 1024 * 1024, ge=1024, description="Largest body of a request")
    max_buffered_body_bytes: int = Field(
        384 * 1024 * 1024,
        ge=1024,
        description="Request bodies in memory, those still arriving included, divided among server"
        " processes; what goes beyond is answered 503",
    )
    max_head_bytes: int = Field(
        64 * 1024, ge=1024, description="Request line and headers of a request"
    )
    max_connections: int = Field(4096, ge=1, description="Open connections of a server process")
    receive_timeout_s: float = Field(
        20.0, gt=0, description="Time for a request's head, and for every 16 KiB of its body"
    )
    max_pending: int = Field(
        1024,
        ge=1,
        description="Requests one ingress waits for, divided among its server processes; more are"
        " answered 503",
    )
    enable_request_id_headers: bool = Field(False, description="Answer with an X-Request-Id header")
    response_role: str = Field("assistant", description="Role of the messages in answers")


class HealthSettings(Group):
    """Probes and metrics of a role without HTTP front."""

    health_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address of /health, /ready and /metrics; one that the scraper reaches, such as"
        " 0.0.0.0",
    )
    health_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="0: any free port; default: coordinator 9101, render 9102, encode 9103, prefill"
        " 9104, derender 9105, or any free port where that is taken",
    )
