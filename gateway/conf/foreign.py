"""nginx directives that are not ours, each with what to do instead: pasted files must fail with
advice.

A name here is still an error where it stands; nothing of nginx is ignored silently.
"""

from __future__ import annotations

from gateway.conf.spec import Foreign

_STREAMS = "remove it: replies always stream, nothing is buffered"
_HTTP11 = "remove it: connections to engines are always HTTP/1.1 and kept alive"
_BODIES = "remove it: bodies stay in memory, see client_body_buffers_total"
_NONE = "remove it: kvgate has no such setting"
_CACHE = "remove it: replies of a model are not cached; engines keep their own KV cache"
_FILES = "remove it: kvgate serves no files"
_REWRITE = "use a location and the path in proxy_pass, or return"
_LATER = "not in this version"
_SSL = "remove it: the other TLS settings are those of Python's default server context"
_LOGS = "remove it: logs are plain files"
_BACKEND = "use proxy_pass: engines speak HTTP"
_OS = "remove it: set this where the service is started"
_BALANCE = "use round_robin, least_conn, random two, ip_hash or hash KEY consistent"
_AUTH = "not in this version; put an authenticating proxy in front"

_HINTS: dict[str, str] = {
    "proxy_buffering proxy_buffers proxy_buffer_size proxy_busy_buffers_size "
    "proxy_max_temp_file_size "
    "proxy_temp_path proxy_temp_file_write_size proxy_limit_rate postpone_output": _STREAMS,
    "proxy_request_buffering client_body_buffer_size client_body_in_file_only "
    "client_body_temp_path "
    "client_body_in_single_buffer": _BODIES,
    "proxy_http_version proxy_socket_keepalive": _HTTP11,
    "proxy_cache proxy_cache_path proxy_cache_key proxy_cache_valid proxy_cache_bypass "
    "proxy_no_cache "
    "proxy_cache_use_stale proxy_cache_lock proxy_cache_methods proxy_store expires etag "
    "open_file_cache open_file_cache_valid open_file_cache_errors": _CACHE,
    "root alias index autoindex try_files types default_type types_hash_max_size sendfile "
    "tcp_nopush "
    "directio aio dav_methods ssi sub_filter charset internal": _FILES,
    "gzip gzip_types gzip_vary gzip_proxied gzip_min_length gzip_comp_level gzip_buffers "
    "gzip_disable gzip_http_version gzip_static gunzip brotli brotli_types zstd": (
        "remove it: replies go through as the engine made them"
    ),
    "rewrite if break rewrite_log": _REWRITE,
    "geo split_clients map_hash_bucket_size map_hash_max_size recursive_error_pages satisfy "
    "limit_req_dry_run limit_conn_dry_run ssl_trusted_certificate "
    "set_real_ip_from real_ip_header real_ip_recursive proxy_ssl_protocols proxy_ssl_ciphers "
    "proxy_ssl_session_reuse resolver resolver_timeout": _LATER,
    "sticky least_time": _BALANCE,
    "zone state queue ntlm": _NONE,
    "ssl_ciphers ssl_prefer_server_ciphers ssl_session_cache ssl_session_timeout "
    "ssl_session_tickets ssl_dhparam ssl_ecdh_curve ssl_stapling ssl_stapling_verify "
    "ssl_early_data ssl_buffer_size ssl_password_file ssl_conf_command": _SSL,
    "ssl_verify_depth proxy_ssl_verify_depth": (
        "remove it: the depth of certificate chains is not limited, authorities are what counts"
    ),
    "ssl": "write `listen ... ssl`",
    "http2 http2_max_concurrent_streams http3 quic_retry": "remove it: clients speak HTTP/1.1",
    "auth_request auth_request_set auth_basic auth_basic_user_file auth_jwt": _AUTH,
    "fastcgi_pass uwsgi_pass scgi_pass grpc_pass memcached_pass fastcgi_param": _BACKEND,
    "log_not_found log_subrequest open_log_file_cache": _LOGS,
    "master_process worker_rlimit_core worker_priority "
    "worker_cpu_affinity working_directory use multi_accept accept_mutex pcre_jit thread_pool "
    "load_module lock_file debug_connection timer_resolution ssl_engine worker_aio_requests": _OS,
    "server_tokens server_names_hash_bucket_size server_names_hash_max_size "
    "variables_hash_max_size "
    "variables_hash_bucket_size proxy_headers_hash_max_size proxy_headers_hash_bucket_size "
    "connection_pool_size request_pool_size output_buffers merge_slashes "
    "underscores_in_headers ignore_invalid_headers port_in_redirect absolute_redirect "
    "server_name_in_redirect reset_timedout_connection tcp_nodelay lingering_close "
    "lingering_time lingering_timeout keepalive_disable keepalive_min_timeout keepalive_time "
    "client_header_buffer_size chunked_transfer_encoding max_ranges": _NONE,
    "proxy_redirect proxy_cookie_domain proxy_cookie_path proxy_cookie_flags proxy_method "
    "proxy_set_body proxy_pass_request_body proxy_pass_request_headers proxy_ignore_headers "
    "proxy_intercept_errors proxy_force_ranges proxy_bind add_trailer mirror": (
        "remove it: requests and replies pass unchanged but for the headers you set"
    ),
    "proxy_ignore_client_abort": "remove it: when a client leaves, its engine is told at once",
    "stream mail": "only http is served",
    "limit_except limit_rate limit_rate_after slice secure_link": "kvgate has nothing like it",
    "stub_status status": "use metrics; or admin; in a location of their own",
    "upstream_conf api": "use admin; in a location of its own",
    "listen_backlog": "write `listen ... backlog=N`",
}

# nginx's parameters of directives that are ours: (directive, parameter) -> what to do instead.
_PARAMETERS: dict[str, dict[str, str]] = {
    "server": {
        "resolve service": "remove it: names are resolved when a connection is opened",
        "slow_start route drain": _LATER,
    },
    "listen": {
        "http2 quic spdy": "remove it: clients speak HTTP/1.1",
        "proxy_protocol": _LATER,
        "deferred bind ipv6only so_keepalive rcvbuf sndbuf fastopen setfib accept_filter": _NONE,
    },
    "access_log": {"gzip": _LOGS},
}

PARAMETERS = {
    (directive, name): hint
    for directive, hints in _PARAMETERS.items()
    for names, hint in hints.items()
    for name in names.split()
}
FOREIGN = tuple(Foreign(name, hint) for names, hint in _HINTS.items() for name in names.split())
