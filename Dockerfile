# The gateway, and the simulated engine: one image, two subcommands.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY policies policies
COPY loadtests loadtests
RUN python -m venv /opt/prefixgate \
    && /opt/prefixgate/bin/pip install --no-cache-dir .

FROM python:3.13-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin prefixgate
COPY --from=build /opt/prefixgate /opt/prefixgate
ENV PATH=/opt/prefixgate/bin:$PATH \
    PYTHONUNBUFFERED=1
USER prefixgate
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/live', timeout=2)"]
ENTRYPOINT ["prefixgate"]
CMD ["serve", "--host", "0.0.0.0"]
